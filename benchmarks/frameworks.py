"""Libraries that one would pick instead, each at its own task: how long they take, beside ours.

    python -m benchmarks.frameworks [--turns 5] [--data DIR] [--json] [--out benchmarks/results]

Processor time on one core, to which the process is bound: medians of interleaved turns, after one
that compiles. A peer that is not installed is left out; pfl is installed with `--no-deps`, since it
asks for an older dp-accounting. Each peer runs in the way that was fastest here.

pfl: federated averaging of all clients in one process, full batches, float32; its local optimizer
is the few lines below, which are faster than torch's. Ours: `federate` in stacks; float64 for
logistic regression (1000 clients, 20 rows each), float32 for the network (100 clients, 17 digits
each). "private": uploads are clipped to 0.1 and the server adds noise. "apart": the largest
difference of the two models after two rounds over their largest entry, where the clip of a private
run is in force and its noise is next to nothing.

jax-privacy: a step of 256 images, clipped to 1, noise multiplier 1, float32, compiled, in the
microbatches that are fastest here (32 images of 64 pixels, 8 of 784). "ready": one batch is given;
"drawn": Poisson sampling by each library. "apart": as above, after 20 steps.

dp-accounting: epsilon at delta 1e-5 of Gaussian releases, noise multiplier 1, sampling rate 0.01,
from nothing, and then of one release more. Its loss distributions are on the default grid and on
one that is ten times coarser. A smaller epsilon is a tighter bound.
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name as of
from types import SimpleNamespace
from typing import Any

import dp_accounting
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, soft_margin_loss
from torch.nn.utils import parameters_to_vector

import manifed
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances, prepare, table
from benchmarks.modules import BATCH, CLIP, NOISE, WARM, Pairs, images_of, medians, mlp
from benchmarks.modules import ours as drawn_steps
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.federation.stack import StackTransport
from manifed.oracles.minibatch import Full
from manifed.privacy import epsilon_bounds, loss, renyi
from manifed.privacy.events import PoissonSampled, Release
from manifed.problems.linear import Logistic
from manifed.problems.module_problem import ModuleProblem, made
from manifed.problems.real import Digits, Mnist
from manifed.runs.fit import Round, federate
from manifed.setting import Multiplier

ROUNDS = 10
"""Of ours in a turn."""
STEPS = 20
"""Of DP-SGD in a turn."""
DELTA = 1e-5
SILENT = 1e-9
"""Noise multiplier of the runs whose models are compared."""
UPLOAD = 0.1
"""Clip of an upload, which is shorter than any."""
CLIENT_LEVEL = partial(manifed.ClientLevel, l2_norm_clip=UPLOAD)
MICROBATCH = {64: 32, 784: 8}
PADDED = 352
"""Room for a Poisson batch: six standard deviations."""
Found = dict[str, tuple[float, float, float | None]]
"""Milliseconds of ours and theirs, and the difference of the models where it was looked at."""
Case = tuple[Iterator[Round], nn.Module, Callable[[int], object]]
"""Our rounds, and the model that pfl trains by a function of the number of rounds."""


def rounds_of_ours(
    problem: Any, sites: Any, start: Tensor, steps: int, size: float, level: Any, noise: Any
) -> Iterator[Round]:
    """Rounds of all clients, without an end; ``noise`` is a multiplier, or None."""
    training = RSGD(step_size=size, local_steps=steps, minibatch=Full(), maps="retraction")
    privacy = noise and level(
        noise=Multiplier(noise_multiplier=noise), delta=DELTA, noise_source="os"
    )
    return federate(
        problem, sites, (training, TangentMean()), rounds=100_000, privacy=privacy, start=start,
        transport=partial(StackTransport, at_once=None, memory_budget_mb=1024),
    )  # fmt: skip


def after(rounds: Iterator[Round], count: int) -> Tensor:
    """The model after so many more rounds."""
    return [next(rounds).model for _ in range(count)][-1]


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of two models over the largest entry of ours."""
    return float((ours - theirs).detach().abs().max() / ours.abs().max())


def told(page: Page, what: str, found: Found) -> Found:
    """Says what both took, and how far apart their models are."""
    rows = [
        [name, *(f"{n:.3g}" if n < 1000 else f"{n:.0f}" for n in (a, b, b / a)),
         f"{gap:.0e}" if gap is not None else ""]
        for name, (a, b, gap) in found.items()
    ]  # fmt: skip
    page.say(table([what, "ours ms", "theirs ms", "theirs / ours", "apart"], rows))
    return found


# -- pfl -------------------------------------------------------------------------------------
def descent(parameters: Iterable[nn.Parameter], lr: float) -> SimpleNamespace:
    """The local optimizer of pfl."""
    held = list(parameters)

    @torch.no_grad()
    def step() -> None:
        for one in held:
            one.sub_(one.grad, alpha=lr)  # pyright: ignore[reportArgumentType]

    def zero_grad() -> None:
        for one in held:
            one.grad = None

    return SimpleNamespace(step=step, zero_grad=zero_grad)


def rounds_of_pfl(
    model: Any, criterion: Any, users: Sequence[Pairs], steps: int, size: float, noise: float | None
) -> Callable[[int], object]:
    """A function that runs some rounds of all users."""
    model.loss = lambda feature, label: criterion(model(feature), label)
    model.metrics = lambda *_: {}
    count = len(users)
    sampler = of("pfl.data.sampling:get_user_sampler")("minimize_reuse", list(range(count)))
    data = of("pfl.data.federated_dataset:FederatedDataset").from_slices(users, sampler)
    privacy = []
    if noise is not None:
        central = of("pfl.privacy.privacy_mechanism:CentrallyAppliedPrivacyMechanism")
        privacy = [central(of("pfl.privacy.gaussian_mechanism:GaussianMechanism")(UPLOAD, noise))]
    backend = of("pfl.aggregate.simulate:SimulatedBackend")(data, data, privacy)
    server = torch.optim.SGD(model.parameters(), lr=1.0)
    wrapped = of("pfl.model.pytorch:PyTorchModel")(model, descent, server)
    local = of("pfl.hyperparam.base:NNTrainHyperParams")(
        local_num_epochs=steps, local_learning_rate=size, local_batch_size=None
    )
    average, done = of("pfl.algorithm.federated_averaging:FederatedAveraging")(), 0

    def run(rounds: int) -> None:  # goes on where the last call ended; only round 1 is evaluated
        nonlocal done
        done += rounds
        asked = of("pfl.algorithm.base:NNAlgorithmParams")(done, sys.maxsize, count, None)
        average.run(asked, backend, wrapped, local, send_metrics_to_platform=False)

    return run


def logistic(noise: float | None, d: int, steps: int) -> Case:
    """Logistic regression from zero."""
    generator = torch.Generator().manual_seed(0)
    feature = torch.randn(1000, 20, d, generator=generator) / d**0.5
    label = torch.randn(1000, 20, 1, generator=generator).sign()
    users = list(zip(feature, label, strict=True))
    sites = [{"feature": x, "label": y[:, 0]} for x, y in users]
    start = torch.zeros(d, dtype=torch.float64)
    mine = rounds_of_ours(Logistic(), sites, start, steps, 1.0, CLIENT_LEVEL, noise)
    model = nn.Linear(d, 1, bias=False)
    nn.init.zeros_(model.weight)
    return mine, model, rounds_of_pfl(model, soft_margin_loss, users, steps, 1.0, noise)


def network(noise: float | None, steps: int) -> Case:
    """An MLP on digits."""
    feature, label = (tensor[:1700].unflatten(0, (100, 17)) for tensor in images_of(Digits))
    users = list(zip(feature.float(), label, strict=True))
    model = made(lambda: mlp(64, 64), 0)
    problem = ModuleProblem(model, dtype=torch.float32)
    mine = rounds_of_ours(problem, users, problem.start, steps, 0.1, CLIENT_LEVEL, noise)
    return mine, model, rounds_of_pfl(model, cross_entropy, users, steps, 0.1, noise)


def against_pfl(page: Page, turns: int, _: object) -> Found:
    """Milliseconds of a round."""
    cases = {
        f"logistic, d = {d}, {steps} steps": partial(logistic, d=d, steps=steps)
        for d, steps in itertools.product((10, 200), (5, 20))
    } | {"MLP 64-64-10, 5 steps": partial(network, steps=5)}
    found = Found()
    for (name, case), noise in itertools.product(cases.items(), (None, 1.0)):
        mine, model, run = case(noise and SILENT)
        run(2)
        gap = apart(after(mine, 2), parameters_to_vector(model.parameters()))
        mine, _, run = case(noise)
        ms = medians({"ours": partial(after, mine, ROUNDS), "pfl": partial(run, 1)}, turns)
        found[name + ", private" * bool(noise)] = ms["ours"] / ROUNDS, ms["pfl"], gap
    return told(page, "a round of", found)


# -- jax-privacy -----------------------------------------------------------------------------
def steps_of_jax(model: Any, data: Pairs, noise: float, *, is_drawn: bool) -> Callable[[], Tensor]:
    """A function that makes some steps, and returns the parameters."""
    jax = import_module("jax")
    feature, label = (jax.numpy.asarray(t.numpy()) for t in (data[0].float(), data[1]))
    count, few = len(feature), MICROBATCH[feature.shape[1]]

    def mean_loss(parameters: Any, x: Any, y: Any) -> Any:
        w, b, v, c = parameters
        each: Any = of("optax:softmax_cross_entropy_with_integer_labels")
        return each(jax.numpy.tanh(x @ w.T + b) @ v.T + c, y).mean()

    gradient = of("jax_privacy.clipping:clipped_grad")(
        mean_loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), microbatch_size=few
    )
    private = of("jax_privacy.noise_addition:gaussian_privatizer")(stddev=CLIP * noise, prng_key=0)

    def step(parameters: Any, state: Any, x: Any, y: Any, rows: Any) -> Any:
        if rows is not None:
            x, y = x[rows], y[rows]
        padding = None if rows is None else rows < 0
        sums = gradient(parameters, x, y, is_padding_example=padding)
        sums, state = private.update(sums, state)
        return jax.tree.map(lambda p, s: p - 0.1 / BATCH * s, parameters, sums), state

    compiled = jax.jit(step, donate_argnums=(0, 1))
    parameters = [jax.numpy.array(p.detach().numpy()) for p in model.parameters()]
    state = private.init(parameters)
    batches = itertools.repeat(None)
    if is_drawn:
        drawn = of("jax_privacy.batch_selection:CyclicPoissonSampling")(BATCH / count, sys.maxsize)
        padded = of("jax_privacy.batch_selection:split_and_pad_global_batch")
        batches = (padded(rows, PADDED, few)[0] for rows in drawn.batch_iterator(count))

    def run() -> Tensor:
        nonlocal parameters, state
        for rows in itertools.islice(batches, STEPS):
            parameters, state = compiled(parameters, state, feature, label, rows)
        return torch.cat([torch.tensor(p).flatten() for p in jax.device_get(parameters)])

    return run


def against_jax(page: Page, turns: int, folder: Path | None) -> Found:
    """Milliseconds of a step."""
    cases = {"MLP 64-64-10": (made(lambda: mlp(64, 64), 0), images_of(Digits))}
    if folder is not None and (folder / "mnist").is_dir():
        cases["MLP 784-128-10"] = (made(lambda: mlp(784, 128), 0), images_of(Mnist, folder))
    found = Found()
    for name, (model, data) in cases.items():
        few = (data[0][:BATCH], data[1][:BATCH])
        problem = ModuleProblem(model, dtype=torch.float32)
        level = partial(manifed.ExampleLevel, l2_norm_clip=CLIP)
        ready = partial(rounds_of_ours, problem, [few], problem.start, STEPS, 0.1, level)
        gap = apart(after(ready(SILENT), 1), steps_of_jax(model, few, SILENT, is_drawn=False)())
        after(warm := ready(NOISE), WARM // STEPS)
        ms = medians({
            "ours, ready": partial(after, warm, 1),
            "jax, ready": steps_of_jax(model, few, NOISE, is_drawn=False),
            "ours, drawn": drawn_steps(model, data, torch.float32, STEPS),
            "jax, drawn": steps_of_jax(model, data, NOISE, is_drawn=True),
        }, turns)  # fmt: skip
        for kind, shown in (("ready", gap), ("drawn", None)):
            mine, theirs = (ms[f"{who}, {kind}"] / STEPS for who in ("ours", "jax"))
            found[f"{name}, {kind}"] = mine, theirs, shown
    return told(page, "a step of", found)


# -- dp-accounting ---------------------------------------------------------------------------
def against_accounting(page: Page, turns: int, _: object) -> dict[str, Any]:
    """Milliseconds of a price, and the price."""
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    sampling = PoissonSampled(sampling_probability=0.01)
    release = partial(Release, unit="example", neighboring_relation="add-or-remove",
                      noise_multiplier=1.0, sampling=sampling)  # fmt: skip
    peers: dict[str, Callable[[], Any]] = {
        "PLD": partial(PLDAccountant, relation),
        "coarse PLD": partial(PLDAccountant, relation, value_discretization_interval=1e-3),
        "RDP": partial(RdpAccountant, neighboring_relation=relation),
    }

    def ours(counts: Iterator[int], *, is_fresh: bool) -> float:
        for part in (epsilon_bounds, loss, renyi) if is_fresh else ():
            for one in vars(part).values():
                if hasattr(one, "cache_clear"):
                    one.cache_clear()
        return epsilon_bounds.epsilon([release(count=next(counts))], DELTA)

    def theirs(accountant: Any, count: int) -> float:
        return accountant.compose(event, count).get_epsilon(DELTA)

    found, rows, names = dict[str, Any](), [], ("ours", *peers)
    for count in (10**3, 10**4, 10**5, 10**6):
        fresh: dict[str, Callable[[], float]] = {
            "ours": partial(ours, itertools.repeat(count), is_fresh=True)
        }
        fresh |= {n: lambda f=f, count=count: theirs(f(), count) for n, f in peers.items()}
        later = {"ours": partial(ours, itertools.count(count + 1), is_fresh=False)}
        later |= {n: partial(theirs, f().compose(event, count), 1) for n, f in peers.items()}
        epsilons = {name: price() for name, price in fresh.items()}
        ms = medians(fresh, turns), medians(later, turns)
        found[f"{count}"] = {"fresh": ms[0], "later": ms[1], "epsilon": epsilons}
        rows.append([f"{count:,}", *(f"{ms[0][n]:.1f}, {ms[1][n]:.1f}" for n in names),
                     *(f"{epsilons[n]:.6g}" for n in names)])  # fmt: skip
    head = ["releases", *(f"{n} ms, one more" for n in names), *(f"{n} epsilon" for n in names)]
    page.say(table(head, rows))
    return found


def main() -> None:
    """Print the tables; with --json the numbers as the last line."""
    page = Page(__doc__, "frameworks.md", turns=5)
    folder = os.environ.get("MANIFED_DATA")
    page.parser.add_argument("--data", type=Path, default=folder and Path(folder))
    given = page.parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    prepare("")  # one thread, and a settled allocator
    page.say(f"# Other frameworks\n\n{circumstances()}")
    page.explain()
    parts: Mapping[str, Callable[[Page, int, Any], dict[str, Any]]] = {
        "pfl": against_pfl, "jax-privacy": against_jax, "dp-accounting": against_accounting,
    }  # fmt: skip
    found = {}
    for peer, part in parts.items():
        if find_spec(peer.replace("-", "_")) is None:
            page.say(f"\n{peer} is not installed: left out.")
            continue
        page.say(f"\n{peer} {version(peer)}\n")
        found[peer] = part(page, given.turns, given.data)
    page.save(given, found)


if __name__ == "__main__":
    main()
