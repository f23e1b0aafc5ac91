"""The knowledge base and its loader: every entry is held to the schema, and every pattern to its cost."""

from __future__ import annotations

import csv
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucheck import pitfalls
from gpucheck.diagnose.literals import LITERAL_FLOOR, required
from gpucheck.pitfalls import ANYTHING, FactTest, Operator, PitfallError, Safety, TextTest, load

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = Path(__file__).parent.parent / "data"
FILES = sorted(pitfalls.HERE.glob("*.toml"))
ENTRIES = list(load().values())
IDS = [entry.id for entry in ENTRIES]
# A pattern is run on a line of at most this many characters; a search of it must take less than this.
LINE_CHARACTERS = 4096
PATTERN_LIMIT_S = 0.05
_NESTED = re.compile(r"\((?:\?:)?(?:[^()\\]|\\.)*(?<!\\)[*+](?:[^()\\]|\\.)*\)(?:[*+]|\{\d+,\d*\})")
_HAN = re.compile(r"[\u4e00-\u9fff]")

FINDING_IDS = """
gpu-missing gpu-partial shm-too-small shm-full shm-leftovers shm-unusable shm-item-lost volume-lost
readonly-not-recursive bind-source-missing volume-not-writable disk-full fork-after-cuda
dataloader-worker-died workers-exceed-cpu nofile-too-low unpicklable-dataset main-guard-missing onnx-drift
onnx-export-failed onnx-provider-fallback engine-elsewhere engine-unreachable engine-missing driver-missing
driver-not-loaded nouveau-bound vfio-bound driver-library-mismatch cpu-only-wheel driver-too-old
hidden-by-environment stub-libcuda compat-shadows-driver compat-unsupported-gpu fabric-manager
fabric-not-completed uvm-missing uvm-broken torch-missing torch-import-failed cuda-init-hangs gpu-busy
gpu-lost no-kernel-image ptx-too-new jit-only wheel-newer-wrong rendezvous-unreachable rendezvous-port-held
interface-missing hostname-unresolvable loopback-ipv6-only proxy-swallows-localhost wrong-numbers
gpu-hidden-device nccl-hang nccl-duplicate-gpu gpu-not-in-container toolkit-missing runtime-undeclared
cdi-stale checker-bug
""".split()


def texts_of(entry: pitfalls.Pitfall) -> list[str]:
    """Patterns that confirm an entry or rule it out."""
    return [test.pattern for test in (*entry.confirm, *entry.rule_out) if isinstance(test, TextTest)]


PATTERNS = sorted({p for entry in ENTRIES for p in (*entry.symptoms, *entry.hints, *texts_of(entry))})
# What confirms or rules out may be a short word: it is looked for a few times and then no more.
SHORTEST_WORD = 3


def entry_file(folder: Path, text: str, name: str = "area.toml") -> Path:
    """A folder with one file of entries."""
    (folder / name).write_text(text, encoding="utf-8")
    return folder


MINIMAL = '[some-id]\nheadline = "h"\nwrong_guess = "w"\ncause = "c"\nremedy = "r"\nsafety = "safe"\n'


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_fits_the_schema(path: Path) -> None:
    """Each file of the knowledge base is valid under schema.json: keys, lengths, ids, operators."""
    schema = json.loads((pitfalls.HERE / "schema.json").read_text(encoding="utf-8"))
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    errors = [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]
    assert errors == []


def test_every_area_has_a_file() -> None:
    """The twelve areas are there, and no file of another name."""
    areas = {path.stem for path in FILES}
    assert areas == {
        "cuda",
        "kernel_image",
        "collectives",
        "dataloader",
        "onnx",
        "container_runtime",
        "storage",
        "limits_memory",
        "training",
        "networking",
        "python_env",
        "logs_records",
    }


def test_there_are_two_hundred_pitfalls() -> None:
    """The knowledge base holds at least two hundred entries."""
    assert len(ENTRIES) >= 200


@pytest.mark.parametrize("pitfall_id", FINDING_IDS)
def test_probes_find_their_words(pitfall_id: str) -> None:
    """Every id that the first probes raise has an entry."""
    assert pitfall_id in load()


def test_every_collected_cause_has_exactly_one_entry() -> None:
    """Each cause of the collected symptoms is answered by one entry, and no entry claims any other cause."""
    with (DATA / "symptoms.tsv").open(encoding="utf-8", newline="") as table:
        causes = {row["cause"] for row in csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE)}
    claimed = Counter(cause for entry in ENTRIES for cause in entry.causes)
    assert {cause: claimed[cause] for cause in causes if claimed[cause] != 1} == {}
    assert set(claimed) - causes == set()


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_patterns_have_literals(entry: pitfalls.Pitfall) -> None:
    """Every pattern compiles and requires a literal that is long enough to look for."""
    naming = {*entry.symptoms, *entry.hints}
    for pattern in (*naming, *texts_of(entry)):
        re.compile(pattern)
        floor = LITERAL_FLOOR if pattern in naming else SHORTEST_WORD
        texts = required(pattern).texts
        assert texts, f"{entry.id}: {pattern} requires no literal text"
        assert min(map(len, texts)) >= floor, f"{entry.id}: {pattern} requires only {sorted(texts)}"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data())
def test_a_match_holds_a_required_literal(data: st.DataObject) -> None:
    """Whatever a pattern matches contains one of the texts that the scan looks for, in any case of letters."""
    pattern = data.draw(st.sampled_from(PATTERNS))
    match = re.search(pattern, data.draw(st.from_regex(pattern)))
    assert match is not None
    assert any(text.lower() in match.group().lower() for text in required(pattern).texts)


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_patterns_are_linear(entry: pitfalls.Pitfall) -> None:
    """No pattern takes long on a line made against it: its own pieces over and over, and runs of one character."""
    for pattern in (*entry.symptoms, *entry.hints, *entry.healthy, *texts_of(entry)):
        assert_linear(entry.id, pattern)


def assert_linear(pitfall_id: str, pattern: str) -> None:
    """Runs ``pattern`` over lines made against it."""
    assert not _NESTED.search(pattern), f"{pitfall_id}: nested repetition in {pattern}"
    compiled = re.compile(pattern)
    pieces = [
        re.sub(r"\\(.)", r"\1", piece) for piece in re.split(r"\.[*+]\??|\\[dswDSW][*+]?|\[[^\]]*\][*+]?", pattern)
    ]
    texts = sorted(required(pattern).texts)
    lines = [(piece * LINE_CHARACTERS)[:LINE_CHARACTERS] for piece in (*pieces, *texts, "".join(pieces)) if piece]
    lines += [
        text + filler * (LINE_CHARACTERS - len(text)) for text in texts for filler in (" ", "a", "1", "/", "'", "a ")
    ]
    for line in lines:
        started = time.process_time()
        compiled.search(line)
        assert time.process_time() - started < PATTERN_LIMIT_S, f"{pitfall_id}: {pattern} on {line[:80]!r}"


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_relations_lead_somewhere(entry: pitfalls.Pitfall) -> None:
    """What an entry shares its message with, or follows from, is another entry; nothing follows from itself."""
    for other in {*entry.shares, *entry.follows} - {ANYTHING}:
        assert other in load(), f"{entry.id} names {other}"
        assert other != entry.id
    for other in set(entry.follows) - {ANYTHING}:
        assert entry.id not in load()[other].follows, f"{entry.id} and {other} follow from each other"


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_a_shared_message_has_what_decides(entry: pitfalls.Pitfall) -> None:
    """Of two entries that share a message both ask for the output that decides, whether or not a fact here does."""
    for name in (entry.id, *entry.shares):
        assert load()[name].ask or not entry.shares, f"{name} shares a message and asks for nothing"


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_the_chinese_text_is_chinese(entry: pitfalls.Pitfall) -> None:
    """Headline, wrong guess, cause and remedy are there in Chinese, not copied from the English."""
    words = entry.words("zh")
    for text in (words.headline, words.wrong_guess, words.cause, words.remedy):
        assert _HAN.search(text), f"{entry.id}: {text}"


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_healthy_patterns_compile(entry: pitfalls.Pitfall) -> None:
    """The patterns that excuse a line compile, and none of them excuses everything."""
    for pattern in entry.healthy:
        assert not re.search(pattern, ""), f"{entry.id}: {pattern} matches an empty line"


def test_conditions_ask_for_facts_that_are_read() -> None:
    """Every fact named in a condition is one that this machine's readers know, so that none stays unknown by a typo."""
    from gpucheck import facts

    names = {test.fact for entry in ENTRIES for test in (*entry.confirm, *entry.rule_out) if isinstance(test, FactTest)}
    read = facts.read(names)
    never = {"not read", "not among the variables that may be read"}
    assert sorted(name for name in names if read[name].why in never) == []


def test_loading_takes_milliseconds() -> None:
    """Reading all entries costs less than a fifth of a second of processor time."""
    started = time.process_time()
    load.__wrapped__()
    assert time.process_time() - started < 0.2


def test_an_entry_becomes_data(tmp_path: Path) -> None:
    """Keys of an entry become fields: lists tuples, conditions tests, safety an enum."""
    text = MINIMAL + "symptoms = ['abcdef']\nconfirm = [{ fact = 'a.b', below = 3, weight = 2 }, { text = 'ghijkl' }]\n"
    entry = load(entry_file(tmp_path, text))["some-id"]
    assert (entry.area, entry.safety, entry.symptoms) == ("area", Safety.SAFE, ("abcdef",))
    assert entry.confirm == (FactTest("a.b", Operator.BELOW, 3, 2.0), TextTest("ghijkl"))
    assert entry.facts() == ("a.b",)


def test_words_fall_back_to_english(tmp_path: Path) -> None:
    """A site's own entry without Chinese text shows its English text to Chinese readers."""
    entry = load(entry_file(tmp_path, MINIMAL))["some-id"]
    assert entry.words("zh") == entry.words("en")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (MINIMAL + "colour = 'red'\n", r"area.toml: \[some-id\] has the unknown key 'colour'; allowed: .*symptoms"),
        (MINIMAL.replace('cause = "c"\n', ""), r"\[some-id\] lacks 'cause'"),
        (MINIMAL.replace('"safe"', '"harmless"'), r"safety = 'harmless'; allowed: safe, needs-root, disrupts-jobs"),
        (MINIMAL + "symptoms = 'abcdef'\n", r"symptoms = 'abcdef' is not a list"),
        (MINIMAL + "confirm = [{ fact = 'a.b' }]\n", r"allowed: one `text`, or one `fact` with one of is, not, below"),
        (MINIMAL + "confirm = [{ fact = 'a.b', over = 3 }]\n", r"operator = 'over'; allowed: is, not, below"),
        (MINIMAL + "confirm = ['abcdef']\n", r"which is not a table"),
        ("some-id = 3\n", r"\[some-id\] is not a table"),
        ("[some-id\n", r"area.toml: not TOML"),
    ],
)
def test_a_bad_entry_is_named(tmp_path: Path, text: str, says: str) -> None:
    """An entry that cannot be read is an error with file, entry, the bad value and what is allowed."""
    with pytest.raises(PitfallError, match=says):
        load(entry_file(tmp_path, text))


def test_an_id_met_twice_is_an_error(tmp_path: Path) -> None:
    """The same id in two files is refused, with both files named."""
    entry_file(tmp_path, MINIMAL, "one.toml")
    with pytest.raises(PitfallError, match=r"two.toml: \[some-id\] is already an entry of one.toml"):
        load(entry_file(tmp_path, MINIMAL, "two.toml"))


@pytest.mark.parametrize(
    ("pattern", "texts", "letters"),
    [
        (r"CUDA error: (?:out of memory|invalid device)", {"out of memory", "invalid device"}, 21),
        (r"(?i)no space left on device", {"no space left on device"}, 19),
        (r"a{0,3}bcdefgh+i", {"bcdefgh"}, 8),
        (r"foo(bar)?bazqux\d+", {"bazqux"}, 9),
        (r"Xid \(PCI:[^)]*\): 79", {"Xid (PCI:"}, 12),
        (r'could not select device driver "" with', {"could not select device driver"}, 32),
        (r"(?:abcdefg|\d)x", {"x"}, 1),
        (r"short|much longer text", {"short", "much longer text"}, 5),
        (r"\d+|text", set(), 0),
        (r"abc(?!defghij)klmnop", {"klmnop"}, 9),
        (r"wide  gaps   are cut", {"are cut"}, 14),
        (r"\x41bcdef\bghi", {"Abcdef"}, 9),
        (r"(one(?:twice|three)+)end", {"twice", "three"}, 11),
    ],
)
def test_required_literals(pattern: str, texts: set[str], letters: int) -> None:
    """The literals that a pattern requires: the longest certain run, all alternatives, cut at quotes and wide gaps."""
    assert set(required(pattern).texts) == texts
    assert required(pattern).letters == letters
