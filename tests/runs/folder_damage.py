"""Damage that a run folder may have suffered: named changes of one file, made from sound bytes.

Each is (file, name, change); ``change(path)`` spoils the file at ``path``. Files whose content is
protected by a hash are also rewritten consistently, as a program with a fault might write them.
"""

import json
import os
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from manifed.runs import checkpoint
from tests.privacy.forging import rewritten

MANIFEST = "manifest.json"
METRICS = "metrics.csv"
EXPERIMENT = "experiment.toml"
LEDGER = "ledger.jsonl"
HEAD = "ledger.jsonl.head"
CHECKPOINT = "checkpoint.safetensors"
MODEL = "model.safetensors"
Change = Callable[[Path], object]
Damage = tuple[str, str, Change]
LONG = "9" * 5000
DEEP = "[" * 5000 + "]" * 5000


# -- any file ------------------------------------------------------------------------------------
def of_bytes(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


def instead(make):
    """Something that is no file, made in its place."""
    return lambda path: path.unlink() or make(path)


OF_BYTES = {
    "empty": lambda data: b"",
    "a newline": lambda data: b"\n",
    "cut by 10": lambda data: data[:-10],
    "its first half": lambda data: data[: len(data) // 2],
    "its second half": lambda data: data[len(data) // 2 :],
    "its first byte": lambda data: data[:1],
    "twice": lambda data: data + data,
    "bytes": lambda data: bytes(range(256)) * 4,
    "zeros": lambda data: bytes(len(data)),
    "no UTF-8": lambda data: data[:40] + b"\xff\xfe" + data[40:],
    "UTF-16": lambda data: data.decode("latin-1").encode("utf-16"),
    "deep": lambda data: DEEP.encode(),
    "deep and open": lambda data: b'{"a":' * 200_000,
    "one long number": lambda data: LONG.encode(),
}
ANY = {
    "gone": Path.unlink,
    "a folder": instead(lambda path: (path / "inside").mkdir(parents=True)),
    "a loop": instead(lambda path: path.symlink_to(path.name)),
    "a link to nothing": instead(lambda path: path.symlink_to("nowhere")),
    "a pipe": instead(os.mkfifo),
    "an endless device": instead(lambda path: path.symlink_to("/dev/zero")),
    **{name: of_bytes(change) for name, change in OF_BYTES.items()},
}


# -- JSON ----------------------------------------------------------------------------------------
class Gone:
    """Stands for a key that is removed."""


VALUES = {
    "gone": Gone, "null": None, "a list": [], "a list of lists": [[[]]], "a table": {"x": {}},
    "a word": "word", "true": True, "-1": -1, "1.5": 1.5, "long": 10**4000, "lines": "a\nb\x00",
    "half a pair": "\ud800",
}  # fmt: skip
RAW = {"nan": "NaN", "inf": "-Infinity", "1e999": "1e999", "longer": LONG, "nested": DEEP}
"""What `json.dumps` does not write."""


def _put(table, place, value):
    """Put ``value`` at a place: keys and numbers of entries, parted by slashes."""
    *ways, last = place.split("/")
    for key in ways:
        table = table[int(key)] if isinstance(table, list) else table[key]
    if isinstance(table, list):
        table[int(last) : int(last) + 1] = [] if value is Gone else [value]
    elif value is Gone:
        table.pop(last, None)
    else:
        table[last] = value


def json_change(place, value, raw='"RAW"'):
    def change(path):
        table = json.loads(path.read_text())
        _put(table, place, value)
        path.write_text(json.dumps(table).replace('"RAW"', raw))

    return change


def placed(
    file,
    says,
    places,
    names,
    change,
):
    """Each of these `VALUES` in each of these places."""
    for place in places:
        for name in names:
            yield file, f"{says}{place} {name}", change(place, VALUES[name])


def json_damage(file, places):
    yield from placed(file, "", places, VALUES, json_change)
    for place in places:
        for name, raw in RAW.items():
            yield file, f"{place} {name}", json_change(place, "RAW", raw)


def head_damage():
    """Values that no head has, in one of a single place, which needs no check."""

    def in_one_place(change, path):
        found, _ = json.JSONDecoder().raw_decode(path.read_text())
        del found["check"]
        path.write_text(json.dumps(found))
        change(path)

    for file, name, change in json_damage(HEAD, ["sequence", "sha256"]):
        yield file, name, partial(in_one_place, change)


MANIFEST_KEYS = [
    "format", "name", "privacy", "config", "config_sha256", "experiment_sha256", "ledger_run_id",
    "stopped",
]  # fmt: skip
DEEPER = [
    "final", "privacy/kind", "privacy/noise_source", "privacy/noise_origins",
    "privacy/adversaries", "privacy/unit", "privacy/adversaries/0", "privacy/adversaries/0/name",
    "privacy/adversaries/0/text", "privacy/adversaries/0/epsilon", "privacy/adversaries/0/delta",
    "final/rounds", "final/epsilon", "final/delta", "final/relative_cost_gap", "final/seconds",
    "config/problem", "config/privacy", "config/federation", "config/strategy",
]  # fmt: skip


# -- rows ----------------------------------------------------------------------------------------
def of_rows(change):
    def spoil(path):
        rows = [line.split(",") for line in path.read_text().splitlines()]
        path.write_text("".join(",".join(row) + "\n" for row in change(rows)))

    return spoil


def with_cell(row, column, text):
    def change(rows):
        rows[row][column] = text
        return rows

    return METRICS, f"row {row}, column {column}: {text[:9]!r}", of_rows(change)


def metrics_damage():
    cells = ("x", "1_0", "--1", "0x1", "1,2", '"1', "\x00", "١", " ", LONG, "1e", "nan(1)", "\r")
    for text in cells:
        yield with_cell(2, 0, text)
        yield with_cell(2, 2, text if text != LONG else "9x" * 5000)
    for text in ("", "-1", "1.5", "nan", "inf", "1e3"):
        yield with_cell(2, 0, text)
    for column in (0, 1, 3):
        for text in ("", "round", "Round", "seconds", "\x00", "a b"):
            if (column, text) != (0, "round"):
                yield with_cell(0, column, text)
    changes = {
        "no heading": lambda rows: rows[1:],
        "two headings": lambda rows: rows[:1] + rows,
        "a row twice": lambda rows: [*rows, rows[-1]],
        "rows turned round": lambda rows: rows[:1] + rows[:0:-1],
        "a row too long": lambda rows: [*rows[:-1], [*rows[-1], "1"]],
        "a row too short": lambda rows: [*rows[:-1], rows[-1][:-1]],
        "an empty row": lambda rows: [*rows[:2], [""], *rows[2:]],
        "without rounds": lambda rows: [row[1:] for row in rows],
    }
    for name, change in changes.items():
        yield METRICS, name, of_rows(change)
    yield METRICS, "semicolons", of_bytes(lambda data: data.replace(b",", b";"))
    yield METRICS, "carriage returns", of_bytes(lambda data: data.replace(b"\n", b"\r\n"))


# -- ledger --------------------------------------------------------------------------------------
def of_lines(change):
    return of_bytes(lambda data: b"".join(change(data.splitlines(keepends=True))))


def with_line(sequence, place, value):
    """A chain and head that are right, with another value in one line."""

    def change(found):
        if found["sequence"] == sequence:
            _put(found, place, value)
        return found

    return lambda path: rewritten(path, change)


def ledger_damage():
    lines = {
        "no first line": lambda lines: lines[1:],
        "no last line": lambda lines: lines[:-1],
        "no middle line": lambda lines: [*lines[:2], *lines[3:]],
        "lines swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        "a line twice": lambda lines: [*lines, lines[-1]],
        "a line of words": lambda lines: [*lines, b"words\n"],
        "a torn line": lambda lines: [*lines, lines[-1][:-9]],
        "a changed digit": lambda lines: [*lines[:2], lines[2].replace(b"0", b"1", 1), *lines[3:]],
        "deep line": lambda lines: [*lines, DEEP.encode() + b"\n"],
    }
    for name, change in lines.items():
        yield LEDGER, name, of_lines(change)
    names = ("null", "a list", "a table", "-1", "1.5", "long", "true")
    yield from placed(
        LEDGER,
        "header ",
        ("said/format", "said/run_id", "said/config_sha256", "said/key_id"),
        names,
        partial(with_line, 0),
    )
    first = (
        "reserves", "reserves/first", "reserves/attempt", "reserves/cohort", "terms",
        "terms/population", "terms/updates", "terms/sampling", "terms/aggregate",
        "terms/planned_draws", "terms/updates/0/partitions",
        "terms/updates/0/releases/0/noise_multiplier", "terms/updates/0/releases/0/count",
    )  # fmt: skip
    names = ("gone", "null", "a list", "a table", "a word", "-1", "long")
    yield from placed(LEDGER, "charge ", first, names, partial(with_line, 1))
    for cohort in ("0-99999999", "1-0", "b:!", "b:////", "0-" + "9" * 30, "-1"):
        yield LEDGER, f"cohort {cohort[:12]}", with_line(1, "reserves/cohort", cohort)
    for key in ("kind", "body", "settles", "amends", "mystery"):
        yield LEDGER, f"with {key}", with_line(1, key, {"upto": 1})


# -- tensors -------------------------------------------------------------------------------------
def tensor_headers(file):
    for length in (0, 1, 10**9, 10**18, 2**63, 2**64 - 1):
        claimed = struct.pack("<Q", length)
        change = of_bytes(lambda data, claimed=claimed: claimed + data[8:])
        yield file, f"header of {length:.0e} bytes", change
    far = '{"x":{"dtype":"F64","shape":[%s],"data_offsets":[0,%s]}}'
    texts = {
        "list": "[]", "deep": DEEP, "empty": "{}", "word": '"x"', "no tensor": '{"x":1}',
        "far": far % (10**17, 8 * 10**17), "overflow": far % ("4294967296,4294967296,2", 8),
        "negative": far % (-1, -8), "type": '{"x":{"dtype":"Q9","shape":[1],"data_offsets":[0,8]}}',
        "long": far % (LONG, LONG), "metadata": '{"__metadata__":[]}',
        "numbers": '{"__metadata__":{"round":1,"meta":{},"sha256":null}}',
    }  # fmt: skip
    for name, text in texts.items():
        whole = struct.pack("<Q", len(text)) + text.encode()
        yield file, f"header {name}", of_bytes(lambda data, whole=whole: whole)


TENSORS = {
    "another shape": lambda t: t[..., :-1].clone(),
    "one axis more": lambda t: t[None].clone(),
    "no axis": torch.sum,
    "floats": torch.Tensor.float,
    "integers": torch.Tensor.long,
    "booleans": torch.Tensor.bool,
    "complex": lambda t: t.to(torch.complex64),
    "not finite": lambda t: torch.full_like(t, torch.nan),
    "infinite": lambda t: torch.full_like(t, torch.inf),
}


def tensors_damage(file, saved):
    """A file of whole tensors that are others; ``saved`` makes it by a change of all of them."""
    yield from tensor_headers(file)
    yield file, "none", saved(lambda found: {})
    yield file, "another name", saved(lambda found: {f"{k}y": t for k, t in found.items()})
    yield file, "one more", saved(lambda found: found | {"more": torch.zeros(3)})
    for name, change in TENSORS.items():
        each = saved(lambda found, of=change: {key: of(t) for key, t in found.items()})
        yield file, f"tensors {name}", each


def with_model(change):
    return lambda path: save_file(change(load_file(path)), path)


def consistent_checkpoint(**changes):
    """A checkpoint whose SHA-256 is right, with other parts."""

    def spoil(path):
        saved = checkpoint.load(path)
        parts = {"server_round": saved.server_round, "tensors": dict(saved.tensors)}
        parts["meta"] = saved.meta.model_dump(mode="json")
        parts |= {name: change(parts[name]) for name, change in changes.items()}
        meta = parts["meta"] if isinstance(parts["meta"], str) else json.dumps(parts["meta"])
        metadata = {"round": str(parts["server_round"]), "meta": meta}
        metadata["sha256"] = checkpoint.digest_of(parts["tensors"], metadata)
        save_file(parts["tensors"], path, metadata)

    return spoil


def with_meta(place, value):
    return consistent_checkpoint(meta=lambda meta: (_put(meta, place, value), meta)[1])


def checkpoint_damage():
    yield from tensors_damage(CHECKPOINT, lambda change: consistent_checkpoint(tensors=change))
    for value in (-1, 0, "", "x", "1.5", LONG, 10**9, "١"):
        change = consistent_checkpoint(server_round=lambda _, value=value: value)
        yield CHECKPOINT, f"round {str(value)[:9]!r}", change
    for text in ("", "[]", "null", "1", "word", DEEP, LONG, '{"tally":NaN}', "{}"):
        change = consistent_checkpoint(meta=lambda _, text=text: text)
        yield CHECKPOINT, f"meta {text[:9]!r}", change
    places = (
        "last_accepted", "last_accepted/0", "tally", "tally/pending", "tally/pending/bytes_up",
        "tally/told", "tally/participants", "tally/by_client", "tally/failures", "config_sha256",
        "ledger_run_id", "ledger_head",
    )  # fmt: skip
    yield from placed(
        CHECKPOINT,
        "meta ",
        places,
        ("gone", "null", "a list", "a table", "a word", "-1", "1.5", "long"),
        with_meta,
    )
    for key in ("x", "-1", "99", LONG, "1.5"):
        yield CHECKPOINT, f"last accepted {key[:9]}", with_meta(f"last_accepted/{key}", 1)
        yield (
            CHECKPOINT,
            f"meta by_client key {key[:9]}",
            with_meta(f"tally/by_client/{key}", {"reason": 1}),
        )


def copied_over(name, path):
    """Put the bytes of another file of the folder in the place of this one."""
    shutil.copy(path.with_name(name), path)


# -- all -----------------------------------------------------------------------------------------
def all_damage(files, deeper):
    """Every damage to these files; ``deeper``: also inside the manifest of a finished run."""
    found = [(file, name, change) for file in files for name, change in ANY.items()]
    for file, name in ((MANIFEST, METRICS), (MODEL, CHECKPOINT), (LEDGER, MANIFEST)):
        found.append((file, f"the bytes of {name}", partial(copied_over, name)))
    found += json_damage(MANIFEST, MANIFEST_KEYS + (DEEPER if deeper else []))
    found += head_damage()
    found += metrics_damage()
    found += ledger_damage()
    found += checkpoint_damage()
    found += tensors_damage(MODEL, with_model)
    return [damage for damage in found if damage[0] in files]
