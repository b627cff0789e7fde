"""Python programs in processes of their own that need not import torch: for tests that run many.

One server process imports what is not ours, and nothing of the checkout. Every program is a child
that it forks: no module of ours is there before the program asks for it, and none stays behind.
"""

import atexit
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.mutants.sweep import NOT_OURS, OURS

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "configs" / "quickstart.toml"


def python(*arguments, cwd=ROOT, path=()):
    """What ``python ARGUMENTS`` does in ``cwd``: returncode, stdout and stderr.

    ``arguments`` begin with a script, ``-m`` or ``-c``; ``path`` is put before ``sys.path``.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("out", "err")]
        asked = [arguments, str(cwd), [*map(str, path)], [*map(str, files)]]
        server = _server()
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        out, err = (file.read_text(errors="replace") for file in files)
    return subprocess.CompletedProcess(arguments, code, out, err)


@cache
def _server():
    command = [sys.executable, "-W", "ignore", "-c", "from tests.fresh import serve; serve()"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.communicate)
    return process


def serve():
    """Answer each line of standard input with the exit code of the program that it names."""
    for name in NOT_OURS:
        if not name.startswith(("_pytest", "hypothesis")):
            importlib.import_module(name)
    here = set(sys.path)
    for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
        del sys.modules[name]
    for line in sys.stdin:
        arguments, cwd, path, files = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(arguments, cwd, path, files, here)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(arguments, cwd, path, files, here):
    """Run one program in this forked process, and end it as Python would."""
    import traceback

    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    kind, *rest = arguments if arguments[0] in ("-m", "-c") else ("", *arguments)
    first = str(Path(rest[0]).resolve().parent) if not kind else cwd
    sys.path[:] = [first, *path, *(entry for entry in sys.path if entry in here and entry)]
    sys.argv = rest if kind != "-c" else ["-c", *rest[1:]]
    code = 0
    try:
        if kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(rest[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
