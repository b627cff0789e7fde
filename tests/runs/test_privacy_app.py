"""``manifed privacy app``: the prices of Flower's own wrappers, and what it finds in apps."""

import json
import math
import re

import pytest

from manifed.cli.app import CODES
from tests.command import invoke
from tests.fresh import ROOT
from tests.privacy.releases import cost, poisson

PAGE = (ROOT / "docs" / "flower_privacy.md").read_text()


def priced(*words, sets=""):
    """The exit code and the document of a call."""
    sets = [word for one in sets.split() for word in ("--set", one)]
    done = invoke("privacy", "app", *words, *sets, "--json")
    return done, json.loads(done.stdout or "{}")


LOCAL = "clipping_norm=1 sensitivity={} epsilon={}"
FIXED = "noise_multiplier={} num_sampled_clients={} share={}"


@pytest.mark.parametrize(
    ("wrapper", "settings", "rounds", "zero_out", "any_two"),
    [
        ("local", LOCAL.format(1e-4, 10), 1, 2.13e8, 8.52e8),
        ("local", LOCAL.format(1e-4, 10), 5, 1.065e9, 4.26e9),
        ("local", LOCAL.format(1, 1), 1, 0.751, 1.61),
        ("local", LOCAL.format(1, 1), 20, 3.99, 9.06),
        ("local", LOCAL.format(1, 10), 1, 10.394, 25.44),
        ("local", LOCAL.format(2, 8), 1, 3.511, 7.914),
        ("local", LOCAL.format(2, 8), 5, 9.063, 21.90),
        ("fixed", FIXED.format(0.2, 20, 0.05), 3, 73.62, 222.98),
        ("fixed", FIXED.format(0.2, 20, 0.25), 3, 1121, 4118),
        ("fixed", FIXED.format(1, 20, 0.05), 1, 4.377, 9.997),
        ("fixed", FIXED.format(1, 20, 0.05), 10, 17.86, 46.21),
        ("fixed", FIXED.format(1, 20, 0.05), 100, 91.82, 284.4),
        ("fixed", FIXED.format(0.2, 5, 0.2), 5, 109.3, 344.5),
        ("fixed", FIXED.format(0.2, 5, 0.769), 5, 1107, 4062),
        ("fixed", FIXED.format(0.2, 5, 1), 5, 1800, 6726),
        ("fixed", FIXED.format(2.4, 10, 0.1), 20, 9.166, 22.17),
        ("adaptive", FIXED.format(1, 20, 0.05), 100, 143.1, 284.4),
    ],
)
def test_settings_cost_what_the_specification_says(wrapper, settings, rounds, zero_out, any_two):
    done, found = priced("--wrapper", wrapper, sets=f"{settings} num_rounds={rounds}")
    assert done.exit_code == 1
    rows = {one["neighbours"]: one for one in found["prices"]}
    spent = [rows["zero-out"]["who_sees_cohorts"], rows["any two"]["who_sees_cohorts"]]
    assert spent == pytest.approx([zero_out, any_two], rel=1e-3)
    server = {one["server"] for one in rows.values()}
    assert server == ({*spent} if wrapper == "local" else {"infinity"})
    (one,) = found["wrappers"]
    says = f"{one['epsilon']:g}" if wrapper == "local" else "-"
    numbers = [f"{n:.4g}" for n in (*spent, one["needed_noise_multiplier"])]
    assert f"| `{wrapper} {settings}` | {rounds} | {says} | {' | '.join(numbers)} |" in PAGE


@pytest.mark.parametrize(
    ("words", "settings", "outsider"),
    [
        ((), "num_rounds=100", {"zero-out": 91.82, "any two": 284.4}),
        (("poisson", 1000), "num_rounds=100", {"zero-out": 1.427, "any two": 284.4}),
        (("fixed-size", 100), "num_rounds=30 delta=1e-3", {"zero-out": 31.14, "any two": 55.93}),
    ],
)
def test_an_outsider_of_secret_cohorts_pays_less_where_a_theorem_says_so(words, settings, outsider):
    options = [*zip(("--sampling", "--population"), words, strict=False)]
    options = [word for pair in options for word in pair]
    _, found = priced(
        "--wrapper", "fixed", *options, sets=f"{FIXED.format(1, 20, 0.05)} {settings}"
    )
    told = {one["neighbours"]: one["outsider"] for one in found["prices"]}
    assert told == pytest.approx(outsider, rel=1e-3)
    assert all(one["outsider"] <= one["who_sees_cohorts"] for one in found["prices"])
    if words:
        row = f"| `{' '.join(map(str, options))} --set {settings.replace(' ', ' --set ')}` |"
        assert f"{row} {told['zero-out']:.4g} | {told['any two']:.4g} |" in PAGE


def test_a_strategy_that_is_named_is_priced_as_that_one(tmp_path):
    settings = FIXED.format(1, 20, 0.05)
    _, found = priced("--wrapper", "fixed", "--inner", "FedAdam", sets=settings)
    assert {one["outsider"] for one in found["prices"]} == {"infinity"}
    assert "W2" in {one["code"] for one in found["findings"]}
    folder = app(tmp_path, "strategy = FedAdam()\n" + WRAPPED.format("") + START)
    _, found = priced(folder, "--inner", "FedAvg")
    assert "W2" not in {one["code"] for one in found["findings"]}


def test_the_page_has_no_other_prices_and_every_code_with_what_the_command_says():
    (parametrized,) = test_settings_cost_what_the_specification_says.pytestmark
    assert len(re.findall(r"^\| `(?:local|fixed|adaptive) ", PAGE, re.M)) == len(
        parametrized.args[1]
    )
    assert f"cost {cost(poisson(1.0, 0.02, 100)):.4g}" in PAGE
    for code, text in CODES.items():
        assert f"| {code} | {text} |" in PAGE


def test_declared_steps_are_priced_and_marked():
    sets = "noise_multiplier=1 sampling_probability=0.01 steps_per_round=100 num_rounds={}"
    for rounds, epsilon in ((1, 0.718), (10, 1.828)):
        _, found = priced("--wrapper", "opacus", sets=sets.format(rounds))
        (row,) = found["prices"]
        assert row["server"] == pytest.approx(epsilon, abs=1e-3)
        assert row["neighbours"].endswith("declared by the app, not enforced")


HEAD = 'raise RuntimeError("nobody imports me")\n'
MOD = """from flwr.clientapp.mod import LocalDpMod as Mod
CLIP = 2.0
mods = [Mod(CLIP, 1.0, float(context.run_config["eps"]), delta=1e-5)]
strategy.start(grid, num_rounds=num_rounds)
num_rounds = context.run_config["num-server-rounds"]
"""
WRAPPED = "strategy = DifferentialPrivacyServerSideFixedClipping(strategy, 0.2, 10.0, 20{})\n"
START = "strategy.start(num_rounds=3)\n"
ADAPTIVE = """strategy = FedAvg(fraction_train=context.run_config["eps"])
dp = s.DifferentialPrivacyClientSideAdaptiveClipping(strategy, 1.0, num_sampled_clients=20)
dp.start(num_rounds=100)
"""
REPLY = 'message = MetricRecord({"train_loss": loss})\n'
APPS = {
    "a mod": (MOD, "L1:4 L2:4 L3:4 L5:4 W8:4 M1:4"),
    "a 0-d parameter": (
        MOD + "x = nn.Parameter(torch.ones([]) * 2)\n",
        "L1:4 L2:4 L3:4 L4:7 L5:4 W8:4 M1:4",
    ),
    "a strategy with a state": (
        "np.random.seed(7)\nstrategy = FedAdam()\n" + WRAPPED.format("") + START,
        "L5:4 W1:4 W2:4 W3:4 W4:4 W8:2 M1:4",
    ),
    "an accountant": (
        "strategy = FedAvg()\n"
        + WRAPPED.format(", accountant=RdpAccountant(config)")
        + START + "config = PrivacyConfig(sampling_method=SamplingMethod.WITHOUT_REPLACEMENT)\n",
        "L5:3 W4:5 W8:3 M1:3 R1:3",
    ),
    "a clip that adapts": (ADAPTIVE + REPLY, "L5:3 W1:3 W3:3 W4:3 W5:3 W6:3 W7:3 W8:3 M1:5"),
    "Opacus": (
        "engine = opacus.PrivacyEngine()\nengine.make_private(noise_multiplier=1.0)\n"
        "def fit(steps=100):\n    ...\n" + START,
        "O1:2",
    ),
    "BatchNorm": ("net = nn.BatchNorm2d(3)\n" + REPLY, "M1:3 M2:2"),
    "no names": ("x = 1\n", ""),
}  # fmt: skip


def app(folder, text):
    config = "[tool.flwr.app.config]\neps = 10.0\nnum-server-rounds = 20\n"
    (folder / "pyproject.toml").write_text(config)
    (folder / "apps").mkdir()
    (folder / "apps" / "one.py").write_text(HEAD + text)
    return folder


@pytest.mark.parametrize("name", APPS)
def test_what_an_app_has_is_found_at_its_line_and_nothing_is_imported(tmp_path, name):
    text, expected = APPS[name]
    sets = "sampling_probability=0.01 steps_per_round=100" if name == "Opacus" else ""
    done, found = priced(app(tmp_path, text), sets=sets)
    codes = {one["code"]: one["place"] for one in found["findings"]}
    assert codes == {
        code: f"apps/one.py:{line}" for code, line in (one.split(":") for one in expected.split())
    }
    assert done.exit_code == (1 if expected else 0), done.stderr
    others = [one["who_sees_cohorts"] for one in found["prices"]]
    assert ("infinity" in others) == (not {"L4", "W2"}.isdisjoint(codes))
    if name == "an accountant":
        assert others == pytest.approx([73.62, 222.98], rel=1e-3)


def test_every_code_has_an_app():
    codes = {one.split(":")[0] for _, expected in APPS.values() for one in expected.split()}
    assert codes == {*CODES}


def test_settings_are_read_where_they_stand_and_set_over_them(tmp_path):
    folder = app(tmp_path, MOD)
    for sets, rounds, clip in (("", 20, 2), ("num_rounds=1 clipping_norm=1", 1, 1)):
        _, found = priced(folder, sets=sets)
        _, same = priced(
            "--wrapper",
            "local",
            sets=f"clipping_norm={clip} sensitivity=1 epsilon=10 num_rounds={rounds}",
        )
        assert [one["who_sees_cohorts"] for one in found["prices"]] == [
            one["who_sees_cohorts"] for one in same["prices"]
        ]
        assert {one["epsilon"] for one in found["wrappers"]} == {10}
    assert math.isfinite(found["prices"][0]["who_sees_cohorts"])


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("x = (\n", [], "was never closed"),
        (f"f({'+'.join(['a'] * 3000)})", [], "maximum recursion depth"),
        (MOD.replace('"eps"', "name"), [], "apps/one.py:4: give --set NAME=VALUE: epsilon"),
        (MOD, ["--set", "epsilon=nan"], "epsilon: expected a finite number"),
        (MOD, ["--set", "clip=1"], "clip: expected no such field"),
        (MOD, ["--wrapper", "global"], "'global' is not one of"),
        (
            "strategy = FedAvg()\n" + WRAPPED.format("") + START,
            ["--sampling", "poisson"],
            "Expected population >= num_sampled_clients = 20",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_code_2(tmp_path, text, words, said):
    done = invoke("privacy", "app", app(tmp_path, text), *words)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    (tmp_path / "pyproject.toml").unlink()
    assert invoke("privacy", "app", tmp_path).exit_code == 2
