"""Laws of `--where`: what it accepts, what it refuses and how, and that SQL and Python give the same answer."""

from __future__ import annotations

import sqlite3
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.errors import RequestError
from generator.store.index import Compare, Every, Like, Literal, Node, Not, Some, Truth, matches, to_sql
from generator.store.query import MAX_COMPARISONS, parse_where

FLAT = {
    "registers": 128,
    "occupancy": 0.25,
    "layout": "tn",
    "spilled": False,
    "cta_tile": "128x128x32",
    "nvrtc": "13.0",
    "mma": "m64n256k16",
}
NAMES = ("registers", "occupancy", "layout", "cta_tile", "spilled")
TEXTS = st.text(alphabet=string.ascii_letters + string.digits + "_x.[]*?^!- \u00e9\U0001f600", max_size=6)
NUMBERS = st.one_of(
    st.integers(-(2**63) + 1, 2**63 - 1), st.integers(-3, 3), st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.one_of(TEXTS, NUMBERS, st.booleans())
LITERALS = st.one_of(
    st.builds(Literal, TEXTS), NUMBERS.map(lambda number: Literal(repr(number), number)), st.just(Literal("true", 1))
)
FIELDS = st.sampled_from(NAMES)
LEAVES = st.one_of(
    st.builds(Compare, FIELDS, st.sampled_from(("<", "<=", "=", ">=", ">")), LITERALS),
    st.builds(Like, FIELDS, TEXTS),
    st.builds(Truth, FIELDS),
)
NODES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.lists(inner, max_size=3).map(lambda items: Every(tuple(items))),
        st.lists(inner, max_size=3).map(lambda items: Some(tuple(items))),
    ),
    max_leaves=6,
)


def ask_sql(node: Node, flat: dict) -> bool:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE variants (id INTEGER PRIMARY KEY)")
    database.execute("CREATE TABLE facts (variant INTEGER, name TEXT, value, PRIMARY KEY (variant, name))")
    database.execute("INSERT INTO variants VALUES (1)")
    database.executemany("INSERT INTO facts VALUES (1, ?, ?)", flat.items())
    sql, values = to_sql(node)
    found = database.execute(f"SELECT id FROM variants WHERE {sql}", values).fetchall()
    database.close()
    return bool(found)


@settings(max_examples=400, deadline=None)
@given(node=NODES, flat=st.dictionaries(FIELDS, VALUES, max_size=5))
def test_sql_and_python_agree(node: Node, flat: dict) -> None:
    assert ask_sql(node, flat) == matches(node, flat)


@settings(max_examples=200, deadline=None)
@given(node=NODES)
def test_no_value_of_an_expression_is_in_its_sql(node: Node) -> None:
    sql, values = to_sql(node)
    assert sql.count("?") == len(values)
    assert set(sql) <= set(string.ascii_letters + "0123 ().=<>?,'")
    assert not any(name in sql for name in NAMES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("registers<=128 and occupancy>=0.25 or layout='nn'", True),
        ("registers<128 or occupancy>0.25", False),
        ("layout=nn or layout=tn and registers=1", False),
        ("(layout=nn or layout=tn) and registers=128", True),
        ("not layout = nn", True),
        ("not spilled and registers", True),
        ("spilled = false", True),
        ("registers != 128", False),
        ("registers <> 127", True),
        ("registers == 1.28e2", True),
        ("tile=128x128x32", True),
        ("CTA_TILE like '128x*x32'", True),
        ("cta_tile like 128x", False),
        ("nvrtc = 13.0", True),
        ("missing = 1", False),
        ("missing != 1", True),
        ("missing < 1 or missing >= 1", False),
        ("layout < 5 or layout >= 5", False),
        ("occupancy>-1", True),
        ("mma=wgmma", True),
        ("mma='WGMMA'", True),
        ("mma!=wgmma or mma=m16n8k16", False),
        ("mma=m64n256k16", True),
        ("layout!=wgmma", True),
    ],
)
def test_an_expression_means_what_it_says(text: str, expected: bool) -> None:
    node = parse_where(text)
    assert matches(node, FLAT) is expected
    assert ask_sql(node, FLAT) is expected


def test_an_architecture_may_be_written_short() -> None:
    for text in ("arch=90a", "arch='sm_90a'", "arch = 9.0a"):
        assert parse_where(text) == Compare("arch", "=", Literal("sm_90a"))
    with pytest.raises(RequestError, match="did you mean sm_75"):
        parse_where("arch=76")


@pytest.mark.parametrize(
    "text",
    ["", "registers<", "<3", "registers 3", "(registers", "registers)", "registers<=128 and", "'registers'=3"]
    + ["registers=3; drop table variants", "registers=1e999", "registers=" + "9" * 30, "registers like", "layout='tn"]
    + ["not", "((((", "registers < and", "layout='\x00'", "layout='\udcff'", "(" * 1000 + "registers", "x" * 5000]
    + [" or ".join(["registers"] * (MAX_COMPARISONS + 1)), "not " * 900 + "registers"],
)
def test_what_cannot_be_read_is_one_line(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_where(text)
    assert "\n" not in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["registers>'abc'", "occupancy=half", "not stages='3'", "threads!=128x"])
def test_a_number_is_not_compared_with_a_text(text: str) -> None:
    with pytest.raises(RequestError, match="--where compares [a-z]+, a number, with the text '.*': write a number"):
        parse_where(text)


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(RequestError, match="unknown field 'regs'.*registers"):
        parse_where("regs<3", known=NAMES)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        node = parse_where(text)
    except RequestError:
        return
    assert ask_sql(node, FLAT) == matches(node, FLAT)


def test_the_longest_expression_is_within_limits_of_sqlite() -> None:
    text = " or ".join(["a=1"] * (MAX_COMPARISONS - 1)) + " or " + "not " * 30 + "a=2"
    assert ask_sql(parse_where(text), {"a": 1})
