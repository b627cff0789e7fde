"""What a run can count to: the fields of a noise address bound rounds, clients, tries and steps."""

from manifed.algorithms.rsvrg import RSVRG
from manifed.experiment.halves import AnyTraining
from manifed.oracles.draws import STEPS_PER_PHASE
from manifed.privacy.noise import BITS


def check_limits(
    training: AnyTraining, *, num_clients: int, num_rounds: int, max_attempts: int
) -> None:
    """Refuse counts whose noise no address could hold (manifed/privacy/noise.py).

    Raises:
        ValueError: naming the field, its value and its bound.
    """
    _check("federation.num_rounds", num_rounds, (1 << BITS["server_round"]) - 1)
    _check("federation.num_clients", num_clients, 1 << BITS["partition"])
    _check("federation.replies.max_attempts", max_attempts, 1 << BITS["attempt"])
    most = STEPS_PER_PHASE
    if isinstance(training, RSVRG):
        name = "training.epochs * (training.inner_steps + 1)"
        _check(name, training.epochs * (training.inner_steps + 1), most)
    else:
        _check("training.local_steps", training.local_steps, most)


def _check(field: str, value: int, most: int) -> None:
    if value > most:
        raise ValueError(f"{field}: expected at most {most}, which addresses can hold, got {value}")
