"""Check a ledger of manifed without manifed, and compute its epsilons again with dp_accounting.

This is a second implementation of docs/ledger.md for auditors; it shares no code with the library.
Exit codes: 0 the ledger is sound, 1 it is damaged or says what no run says, 2 bad input.
"""

import argparse
import base64
import hashlib
import hmac
import json
import math
import re
import sys
from collections import Counter
from functools import cache, reduce
from itertools import pairwise
from pathlib import Path

import dp_accounting
import numpy as np
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import rdp_privacy_accountant as rdp

HASH = "[0-9a-f]{64}"
END = re.compile(rf',"sha256":"({HASH})"(?:,"tag":"({HASH})")?}}\n'.encode())
RANGES = re.compile(r"(\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*)?")
# Of each object its keys ("?": may be absent) with their type, [type of each], least number (with a
# dot where it may be broken) or choice (a|b). Where it has a kind, the shape is that of the kind.
SHAPES = {
    "line": "sequence=0 previous=text settles?=settles terms?=terms planned?=[terms] "
    "reserves?=reserves said?=said",
    "settles": "upto=-1 cohorts?=[text] is_open=bool",
    "reserves": "first=0 last=0 attempt=0 cohort=text",
    "terms": "population=1 updates=[update] sampling=sampling aggregate=[release] planned_draws=0 "
    "num_examples=[-1000000000] probabilities=[1e-300]",
    "update": "partitions=text releases=[release]",
    "release": "kind=gaussian|laplace unit=example|client "
    "neighboring_relation=add-or-remove|replace-one noise_multiplier=0. to_server?=0. to_one?=0. "
    "to_coalition?=0. sampling=sampling count=0 label=text",
    "sampling": "kind=unsampled",
    "sampling of kind poisson": "kind=poisson sampling_probability=1e-300",
    "sampling of kind without-replacement": "kind=without-replacement sample_size=1 population=1",
    "head": "format=3 sequence=-1 sha256=text tag?=text",
}
TYPES = {"text": str, "bool": bool, "said": dict}
KNOWN = {"one-node": "to_one", "coalition": "to_coalition", "everybody": "noise_multiplier"}
"""Adversaries who know masks, and the multiplier of a masked release that each of them meets."""


class Damaged(Exception):
    """The ledger cannot be believed; the text says why."""


class NotPriced(Exception):
    """dp_accounting has no bound for these releases; the text names them."""


def require(holds, otherwise):
    """Refuse the ledger unless it holds."""
    if not holds:
        raise Damaged(otherwise)


# -- what a line may hold ----------------------------------------------------------------------
def check(value, shape, name):
    """Refuse a value of another shape."""
    if shape.startswith("["):
        require(isinstance(value, list), f"{name} is no list")
        for one in value:
            check(one, shape[1:-1], name)
    elif shape in TYPES:
        require(isinstance(value, TYPES[shape]), f"{name} is no {shape}")
    elif shape in SHAPES:
        require(isinstance(value, dict), f"{name} is no object")
        of_kind = SHAPES.get(f"{shape} of kind {value.get('kind')}", SHAPES[shape])
        fields = dict(one.split("=") for one in of_kind.split())
        for key in value:
            require(fields.keys() & {key, f"{key}?"}, f"{name} has the unknown key {key[:40]!r}")
        for key, one in fields.items():
            bare = key.rstrip("?")
            require(bare in value or bare != key, f"{name} lacks the key {bare!r}")
            if bare in value:
                check(value[bare], one, f"{name}.{bare}")
    elif shape[-1].isalpha():
        require(value in shape.split("|"), f"{name} is not {shape}")
    else:
        is_typed = type(value) is int or (type(value) is float and not shape.lstrip("-").isdigit())
        is_within = is_typed and float(shape) <= value < 1e300
        require(is_within, f"{name} is no number of {shape} or more")


def check_terms(terms):
    """Refuse terms whose parts do not fit each other."""
    population, each = terms["population"], terms["probabilities"]
    require(population <= 10**8, "terms.population is above 10^8")
    released = [one for update in terms["updates"] for one in update["releases"]]
    for one in (terms, *released, *terms["aggregate"]):
        how = one["sampling"]
        is_part = how.get("sample_size", 0) <= how.get("population", 0)
        require(is_part and how.get("sampling_probability", 0) <= 1, "terms sample more than all")
        masks = sum(key.startswith("to_") for key in one)
        is_bare = how["kind"] == "unsampled" and not masks
        require(one.get("kind") != "laplace" or is_bare, "Laplace noise is sampled or masked")
        require(masks in {0, 3}, "terms lack some of the multipliers under masks")
    named = Counter(i for one in terms["updates"] for i in members(one["partitions"], population))
    is_whole = len(named) == population == named.total()
    require(is_whole or not terms["updates"], "terms.updates do not name every client once")
    rate = terms["sampling"].get("sampling_probability")
    is_fit = not each or (len(each) == population and max(each) == rate)
    require(is_fit, "terms.probabilities fit neither the clients nor the sampling")


def members(text, population):
    """The clients that a cohort's text names, in order."""
    try:
        if text.startswith("b:"):
            data = np.frombuffer(base64.b64decode(text[2:], validate=True), dtype=np.uint8)
            found = np.flatnonzero(np.unpackbits(data, bitorder="little")).tolist()
        else:
            require(RANGES.fullmatch(text), "")
            pieces = [one.partition("-") for one in text.split(",") if one]
            ends = [(int(low), int(high or low)) for low, _, high in pieces]
            require(all(low <= high < population for low, high in ends), "")
            require(all(one[1] < other[0] for one, other in pairwise(ends)), "")
            found = [i for low, high in ends for i in range(low, high + 1)]
        require(not found or found[-1] < population, "")
    except (ValueError, Damaged):
        raise Damaged(f"{text[:40]!r} is no cohort of {population} clients") from None
    return found


# -- the chain ---------------------------------------------------------------------------------
def loaded(text):
    """The object that a text is the JSON of."""
    try:
        found = json.loads(text, parse_constant=lambda name: require(not name, f"holds {name}"))
    except (ValueError, RecursionError):
        raise Damaged("is no JSON") from None
    require(isinstance(found, dict), "is no JSON object")
    return found


def canonical(value):
    """The one way to write a value as JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def mac(key, purpose, text):
    """The tag of a text for one purpose."""
    return hmac.new(key, f"manifed ledger {purpose}\0{text}".encode(), "sha256").hexdigest()


def verified_line(raw, number, previous, key_id, key):
    """The entry and the hash of a line whose place in the chain is right."""
    require(raw.endswith(b"\n"), "was never finished (a crash, or the end was cut off)")
    end = END.fullmatch(raw, max(0, raw.rfind(b',"sha256":"')))
    require(end, "does not end with its hash")
    content = raw[: end.start()] + b"}"
    sha256 = hashlib.sha256(content).hexdigest()
    require(sha256 == end[1].decode(), "was changed: its hash is of another text")
    entry = loaded(content)
    require(canonical(entry) == content, "is no canonical JSON (order of keys, spaces, numbers)")
    is_next = (entry.get("sequence"), entry.get("previous")) == (number, previous)
    require(is_next, "does not follow the one before it (removed, added, moved or changed lines)")
    said = entry.get("said", {})
    if number == 0:
        is_known = isinstance(said, dict) and said.get("format") == 3
        require(is_known, "is no header of format 3")
        key_id = said.get("key_id")
        require(not key or key_id == mac(key, "id", "")[:16], "names another key, or none")
    require(bool(end[2]) == bool(key_id), "has a tag, or none, unlike the header says")
    if key:
        is_ours = hmac.compare_digest(end[2].decode(), mac(key, "line", sha256))
        require(is_ours, "was not tagged with the given key")
    check(entry, "line", "the line")
    return entry, sha256, key_id


def head_beside(path, key_id, key):
    """The head that lies beside a ledger and how many lines there must be; None if there is none.

    Its two places are of the last two lines. A torn one was for the line after the other's.
    """
    file = path.with_name(f"{path.name}.head")
    if not file.exists():
        return None
    data = file.read_bytes()
    is_old = len(data) <= 256 and b"check" not in data  # earlier versions wrote one head alone
    heads = []
    try:
        for place in (data,) if is_old else (data[:256], data[4096:]):
            text, _, check_ = place.partition(b', "check": "')
            content = text if is_old else text + b"}"
            whole = hashlib.sha256(content).hexdigest()[:16] + '"}'
            if is_old or check_.rstrip() == whole.encode():
                check(found := loaded(content), "head", "it")
                heads.append((found["sequence"], found["sha256"]))
                said = "{}:{}".format(*heads[-1])
                purpose = "head" if is_old else "place"
                signed = mac(key, purpose, said) if key else found.get("tag")
                is_ours = found["format"] == 3 and found.get("tag") == signed
                require(is_ours, "is of another format or key")
                require(("tag" in found) == bool(key_id), "has a tag, or none, unlike the ledger")
        require(heads, "has no place that is whole")
        head = max(heads)
        follow = head[0] - min(heads)[0] == len(heads) - 1
        require(follow, "has places that are not of two lines in turn")
    except Damaged as what:
        raise Damaged(f"its head {file.name} {what}") from None
    return head, head[0] + 1 + (not is_old and len(heads) == 1)


# -- what counts -------------------------------------------------------------------------------
class Count:
    """How often each client may have been in a cohort, by the terms that held."""

    def __init__(self):
        """Nothing was read."""
        self.terms = []
        self.draws = []
        self.served = []
        self.now = None
        self.open = None
        self.planned = []
        self.origins = set()
        self.delta = None

    def know(self, terms):
        """The number of these terms."""
        if terms not in self.terms:
            check_terms(terms)
            is_alike = all(one["population"] == terms["population"] for one in self.terms)
            require(is_alike, "terms are of another number of clients than those before")
            self.terms.append(terms)
            self.draws.append(0)
            self.served.append(np.zeros(terms["population"], dtype=np.int64))
        return self.terms.index(terms)

    def add(self, rounds, clients, of):
        """Count rounds of these clients."""
        self.draws[of] += rounds
        self.served[of][clients] += rounds

    def close(self):
        """Count whole what is still reserved: nothing says that a part of it was not used."""
        if self.open:
            first, last, clients, of = self.open
            self.add(last - first + 1, clients, of)
        self.open = None

    def take(self, entry):
        """Count one line."""
        if "settles" in entry:
            self.settle(**entry["settles"])
        if "terms" in entry:
            self.now = self.know(entry["terms"])
        if "planned" in entry:
            self.planned = [self.know(one) for one in entry["planned"]]
        if said := entry.get("reserves"):
            self.close()
            require(self.now is not None, "reserves rounds before there are terms")
            require(said["first"] <= said["last"] <= 10**9, "reserves rounds out of order")
            clients = members(said["cohort"], self.terms[self.now]["population"])
            self.open = (said["first"], said["last"], clients, self.now)
        said = entry.get("said", {})
        check(origins := said.get("noise_origins", []), "[text]", "noise_origins")
        check(place := said.get("place", {"seed": 0}), "said", "place")
        check(limits := said.get("limits", {}), "said", "limits")
        check(limits.get("delta", 1e-300), "1e-300", "limits.delta")
        self.origins.update(origins)
        if "place" in said:
            self.origins.add("os" if place.get("seed") is None else "seed")
        self.delta = limits.get("delta", self.delta)

    def settle(self, upto, is_open, cohorts=None):
        """Replace what was reserved by what was run."""
        require(self.open, "settles a reservation, and none is open")
        (first, last, clients, of), self.open = self.open, None
        rounds = upto - first + 1
        require(0 <= rounds <= last - first + 1, "settles other rounds than were reserved")
        if cohorts is None:
            self.add(rounds, clients, of)
        for text in cohorts or ():
            found = members(text, self.terms[of]["population"])
            require(set(found) <= set(clients), "settles clients that were not reserved")
            self.add(1, found, of)
        require(cohorts is None or len(cohorts) == rounds, "settles rounds without their cohorts")
        if is_open and upto < last:
            self.open = (upto + 1, last, clients, of)


# -- prices ------------------------------------------------------------------------------------
def met(releases, adversary):
    """((kind, multiplier, sampling), how often) of the releases, as an adversary meets them."""
    found = Counter()
    for one in releases:
        z = one.get(KNOWN.get(adversary, "to_server"), one["noise_multiplier"])
        how = one["sampling"]
        hidden = None
        if how.get("sampling_probability", 1) < 1:
            hidden = ("poisson", how["sampling_probability"])
        elif how.get("sample_size", 0) < how.get("population", 0):
            hidden = ("subset", how["sample_size"], how["population"])
        found[one["kind"], float(z), hidden if z > 1e-3 else None] += one["count"]
    return tuple((+found).items())


@cache
def price(parts, relation, delta):
    """Epsilon of parts (what is met, the probability that it is made, how often)."""
    parts = [part for part in parts if part[0] and part[2]]
    kinds = {atom for found, *_ in parts for atom, _ in found}
    ways = {hidden[0] for *_, hidden in kinds if hidden}
    for way, proved in (("poisson", "add-or-remove"), ("subset", "replace-one")):
        if way in ways and relation != proved:
            raise NotPriced(f"sampling ({way}) under {relation} has no bound in dp_accounting")
    if any(z == 0 for _, z, _ in kinds):
        return math.inf
    sure = Counter()
    for found, rate, times in parts:
        sure.update({atom: n * times for atom, n in found if rate == 1})
    parts = [(tuple(sure.items()), 1, 1)] * bool(sure) + [one for one in parts if one[1] < 1]
    if len(parts) == bool(sure) and {(kind, how) for kind, _, how in kinds} <= {("gaussian", None)}:
        return float(get_epsilon_gaussian(1 / mu_of(sure.items()), delta)) if sure else 0.0
    if "subset" not in ways:
        has_many_scales = sum(kind == "laplace" for kind, *_ in sure) > 32
        is_on_grid = ways or len(parts) > 1 or not has_many_scales
        return by_loss(parts, delta) if is_on_grid else by_renyi(parts, relation, delta)
    bare = [
        (tuple(((kind, z, None), n) for (kind, z, _), n in found), rate, times)
        for found, rate, times in parts
    ]
    return min(by_renyi(parts, relation, delta), price(tuple(bare), relation, delta))


def mu_of(found):
    """The shift of one Gaussian of deviation 1 that the unsampled ones together come to."""
    plain = ((z, n) for (kind, z, hidden), n in found if kind == "gaussian" and not hidden)
    return math.sqrt(math.fsum(n / z**2 for z, n in plain))


def by_loss(parts, delta):
    """By privacy loss distributions on one grid, every rounding on the safe side."""
    weights, squares, reach = 0.0, 0.0, 0.0
    for found, rate, times in parts:
        mu = mu_of(found)
        about = [(mu, mu**2 / 2 + 10 * mu, 1)] if mu else []
        for (kind, z, hidden), n in found:
            q = hidden[1] if hidden else 1
            if kind == "laplace":
                about.append((min(1 / z, 1.7), 1 / z, n))
            elif hidden:
                spread = min(1 / z, q * math.sqrt(math.expm1(min(z**-2, 700))))
                about.append((spread, math.log1p(q * math.expm1(min(10 / z + z**-2, 600))), n))
        weights += sum(n * rate * times for *_, n in about)
        squares += sum(spread**2 * n * rate * times for spread, _, n in about)
        reach = max(reach, *(most for _, most, _ in about))
    fine = min(0.04, math.sqrt(squares / weights) / 12)
    step = max(2.0 ** math.floor(math.log2(fine)), 2.0 ** math.ceil(math.log2(reach / 2**20)))
    nothing = pld.identity(step)
    total = nothing
    for found, rate, times in parts:
        one = reduce(lambda a, b: a.compose(b), losses(found, step))
        one = one if rate == 1 else one.compute_mixture(nothing, rate)  # who took part is seen
        total = total.compose(one.self_compose(times))
    return float(total.get_epsilon_for_delta(delta))


def losses(found, step):
    """The privacy loss distribution of each kind of release, composed with itself."""
    if mu := mu_of(found):
        yield pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=step)
    for (kind, z, hidden), n in found:
        how = {"value_discretization_interval": step, "sampling_prob": hidden[1] if hidden else 1}
        if kind == "laplace":
            yield pld.from_laplace_mechanism(z, **how).self_compose(n)
        elif hidden:
            yield pld.from_gaussian_mechanism(z, **how).self_compose(n)


def by_renyi(parts, relation, delta):
    """By Renyi divergences; those of a part that is made by a seen coin are mixed in the moment."""
    orders = np.array(rdp.DEFAULT_RDP_ORDERS)
    total = np.zeros(len(orders))
    for found, rate, times in parts:
        moment = (orders - 1) * sum(n * divergences(*atom, relation) for atom, n in found)
        if rate < 1:
            moment = np.logaddexp(math.log1p(-rate), math.log(rate) + moment)
        total += times * np.maximum(moment, 1e-15) / (orders - 1)
    return float(rdp.compute_epsilon(orders, total, delta)[0])


@cache
def divergences(kind, z, hidden, relation):
    """Of one release at dp_accounting's orders, at most those without sampling."""
    relations = dp_accounting.NeighboringRelation
    one = relations.REPLACE_ONE if relation == "replace-one" else relations.ADD_OR_REMOVE_ONE
    plain = dp_accounting.GaussianDpEvent(z)
    event = plain if kind == "gaussian" else dp_accounting.LaplaceDpEvent(z)
    found = rdp.RdpAccountant(neighboring_relation=one).compose(event).rdp
    if not hidden:
        return found
    event = dp_accounting.SampledWithoutReplacementDpEvent(hidden[2], hidden[1], plain)
    return np.minimum(rdp.RdpAccountant(neighboring_relation=one).compose(event).rdp, found)


# -- adversaries -------------------------------------------------------------------------------
def epsilons(count, delta):
    """Yields (name, epsilon or why there is none, unit, relation) of each adversary."""
    used = [t for i, t in enumerate(count.terms) if count.draws[i] or i == count.now]
    updates = [r for t in used for one in t["updates"] for r in one["releases"]]
    aggregate = [r for t in used for r in t["aggregate"]]
    is_masked = any("to_server" in one for one in updates)
    ours = ("server", "external", "client-level", "client-level-cohorts")
    for name in (*ours, *(KNOWN if is_masked else ())):
        released = aggregate if name.startswith("client-level") else updates
        said = sorted({(one["unit"], one["neighboring_relation"]) for one in released})
        if len(said) > 1:
            yield name, f"releases of {said[0]} and {said[1]} have no common bound", "", ""
        elif said:
            try:
                found = max(price(one, said[0][1], delta) for one in parts_of(count, name))
                yield name, found, *said[0]
            except NotPriced as reason:
                yield name, str(reason), *said[0]


def parts_of(count, name):
    """What each kind of client may have released, as `price` takes it."""
    draws = list(count.draws)
    if name == "client-level":
        made = zip(count.terms, draws, strict=True)
        return [tuple((met(terms["aggregate"], name), 1, n) for terms, n in made)]
    if name == "client-level-cohorts":  # each client's rounds, without the coins
        found = [[one | {"sampling": {}} for one in terms["aggregate"]] for terms in count.terms]
        found = [met(one, name) for one in found]
        each = set(zip(*(one.tolist() for one in count.served), strict=True))
        return [tuple(zip(found, [1] * len(found), one, strict=True)) for one in each]
    kinds = [()]
    table = np.zeros((len(draws), len(count.served[0])), dtype=np.int64)
    for row, terms in zip(table, count.terms, strict=True):
        for one in terms["updates"]:
            found = met(one["releases"], name)
            kinds += [found] * (found not in kinds)
            row[members(one["partitions"], terms["population"])] = kinds.index(found)
    if name != "external":
        return parts_by_cohorts(count, kinds, table)
    for i in count.planned:
        draws[i] = max(draws[i], count.terms[i]["planned_draws"])
    rates = np.array([rates_of(terms) for terms in count.terms])
    if not count.planned and count.now is not None and (rates[count.now] < 1).any():
        draws[count.now] += max(0, count.terms[count.now]["planned_draws"] - sum(draws))
    largest = {}
    for column, each in zip(map(tuple, table.T.tolist()), rates.T, strict=True):
        largest[column] = np.maximum(largest.get(column, 0), each)
    return [
        tuple((kinds[k], p, n) for k, p, n in zip(column, each.tolist(), draws, strict=True))
        for column, each in largest.items()
    ]


def parts_by_cohorts(count, kinds, table):
    """By the cohorts that each client may have been in, unless another was in as many of all."""
    asked = np.zeros((len(kinds), table.shape[1]), dtype=np.int64)
    for row, served in zip(table, count.served, strict=True):
        asked[row, np.arange(len(row))] += served
    kept = []
    for column in sorted(set(map(tuple, asked[1:].T.tolist())), key=sum, reverse=True):
        if not any(all(np.array(most) >= column) for most in kept):
            kept.append(column)
    return [tuple(zip(kinds[1:], [1] * len(one), one, strict=True)) for one in kept]


def rates_of(terms):
    """With which probability each client is in a cohort."""
    how = terms["sampling"]
    share = how.get("sample_size", 1) / how.get("population", 1)
    return terms["probabilities"] or [how.get("sampling_probability", share)] * terms["population"]


# -- the command -------------------------------------------------------------------------------
def verified(path, delta=None, head=None, key=None):
    """Everything that a ledger proves, as data; `Damaged` if it cannot be believed."""
    count = Count()
    hashes = ["0" * 64]
    header, key_id = {}, None
    with path.open("rb") as file:
        for number, raw in enumerate(file):
            try:
                entry, sha256, key_id = verified_line(raw, number, hashes[-1], key_id, key)
                count.take(entry)
            except Damaged as what:
                raise Damaged(f"line {number + 1} {what}") from None
            header = header or entry["said"]
            hashes.append(sha256)
    require(header, "line 1 is missing")
    count.close()
    beside, least = head_beside(path, key_id, key) or (None, 0)
    heads = {"the given head": head, "the head beside it": beside}
    for name, one in heads.items():
        is_there = not one or hashes[one[0] + 1 : one[0] + 2] == [one[1]]
        require(is_there, f"line {one and one[0] + 1} is not what {name} says (cut or rewritten)")
    require(len(hashes) > least, f"line {least} is missing, for which its head was torn")
    delta = count.delta if delta is None else delta
    require(not delta or delta < 1, f"its limits are at delta {delta}")
    found = list(epsilons(count, delta)) if delta and count.terms else []
    priced = [one for one in found if not isinstance(one[1], str)]
    tags = "none: whoever can write the folder can rewrite it consistently"
    return {
        "lines": len(hashes) - 1,
        "run": header.get("run_id"),
        "head": f"{len(hashes) - 2}:{hashes[-1]}",
        "end": "checked" if any(heads.values()) else "not checked: there is no head",
        "tags": ("checked" if key else "not checked: no key was given") if key_id else tags,
        "noise keys": ", ".join(sorted(count.origins)) or "nothing said",
        "draws": sum(count.draws),
        "participations": int(sum(count.served, np.zeros(1, dtype=np.int64)).max()),
        "delta": delta or "not given: no epsilon was computed",
        "epsilon": {name: one if one < math.inf else "infinity" for name, one, *_ in priced},
        "unit": {name: f"{unit}, {relation}" for name, _, unit, relation in found},
        "not priced": {name: why for name, why, *_ in found if isinstance(why, str)},
    }


def main(arguments=None):
    """Print what the ledger proves; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledger", type=Path)
    parser.add_argument(
        "--delta", type=float, help="delta of the price (default: that of a site's limits)"
    )
    parser.add_argument("--head", help="ledger head that was kept elsewhere, SEQUENCE:SHA256")
    parser.add_argument("--key", type=Path, help="file with the ledger's key")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(arguments)
    if given.delta is not None and not 0 < given.delta < 1:
        parser.error(f"--delta: expected 0 < delta < 1, got {given.delta:g}")
    head = re.fullmatch(rf"(\d{{1,18}}):({HASH})", given.head or f"0:{'0' * 64}")
    if not head:
        parser.error(f"--head: expected SEQUENCE:SHA256, got {given.head[:80]!r}")
    try:
        key = given.key and given.key.read_bytes().strip()
        if key is not None and len(key) < 16:
            parser.error("--key: expected a file of at least 16 bytes")
        found = verified(given.ledger, given.delta, given.head and (int(head[1]), head[2]), key)
    except OSError as what:
        parser.error(str(what))
    except Damaged as what:
        print(f"{given.ledger}: {what}", file=sys.stderr)
        return 1
    for name, one in found.items() if not given.json else ():
        for of, value in one.items() if isinstance(one, dict) else [("", one)]:
            print(f"{name:16s}{of:16s}{value}" if of else f"{name:16s}{value}")
    if given.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
