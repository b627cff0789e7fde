"""The ray engine: Flower's own simulation runtime on a private SuperLink.

One ``flower-superlink --simulation`` is started for the run, the app is submitted to it with
``flwr run``, Ray runs the virtual clients, and everything is ended by its process id. It is a
check that the app behaves under Flower as it does inline; for speed use the inline engine.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from app.processes import private_flower
from app.superlink import CONNECTION, start_superlink, submit
from manifed.flower.run_config import SIMULATION


def run(
    *,
    run_config: Mapping[str, str],
    num_supernodes: int,
    project: Path,
    timeout: float,
    on_line: Callable[[str], None],
) -> None:
    """Runs the app in ``project`` with ``num_supernodes`` virtual clients under Ray.

    Args:
        run_config: what every process of the run reads (manifed/flower/run_config.py).
        num_supernodes: how many virtual clients there are; one CPU each.
        project: the folder with the Flower app's ``pyproject.toml``.
        timeout: seconds from the submission to the end of the run.
        on_line: called with each line of the run's log.

    Raises:
        EngineFailed: the run did not end as finished:completed.
    """
    with private_flower(project, {SIMULATION: "1"}) as flower:
        link, address = start_superlink(
            flower, ["--insecure", "--simulation", "--isolation", "subprocess"]
        )
        flower.connect(CONNECTION, address)
        federation = f"num-supernodes={num_supernodes} client-resources-num-cpus=1"
        submit(
            flower,
            run_config,
            ["--federation-config", federation],
            timeout=timeout,
            on_line=on_line,
            check=link.check,
        )
