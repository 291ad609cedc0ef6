"""Records of any kind, as a broken clock, a hostile page or a future daemon would make them."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.kit.fake_daemon import view
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.metrics import Point, RankRecord, RankSample, Rates, RunRecord

ints = st.one_of(
    st.sampled_from([0, 1, -1, 7, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1)
)
floats = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 1e-320, 1e308, -1e308, float("nan"), float("inf")]),
    st.floats(0, 1000),
    st.floats(),
)
texts = st.one_of(
    st.sampled_from(["a", "", "<b>", "\u202e\x1b[2J", "日本語" * 20, "e\u0301" * 9, "x" * 300]),
    st.text(max_size=40),
)


def maybe(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(st.none(), strategy)


rates = st.builds(Rates, maybe(floats), maybe(floats), *[floats] * 10, st.booleans())
points = st.builds(
    Point, floats, floats, rates, maybe(ints), maybe(floats), maybe(ints), maybe(st.integers(0, 3))
)
samples = st.builds(
    RankSample,
    st.integers(0, 9999),
    floats,
    *[ints] * 8,
    *[floats] * 4,
    st.dictionaries(st.integers(0, 300), floats, max_size=3),
    texts,
    texts,
    *[maybe(ints)] * 3,
    maybe(floats),
    maybe(ints),
    st.booleans(),
    st.booleans(),
)
ranks = st.builds(RankRecord, st.integers(0, 9999), texts, samples, maybe(ints), floats)
runs = st.builds(
    RunRecord,
    st.just(17),
    texts,
    st.integers(0, 10**6),
    st.lists(texts, max_size=3).map(tuple),
    ints,
    floats,
    maybe(floats),
    texts,
    maybe(ints),
    floats,
    st.lists(points, max_size=6).map(tuple),
    st.lists(ranks, max_size=4).map(tuple),
)
records = st.builds(
    lambda name, why, story, runs, started, ended, code: m.JobRecords(
        view(17, name=name, why=why, started_at=started, ended_at=ended, code=code),
        tuple(m.StoryLine(*line) for line in story),
        tuple(runs),
    ),
    texts,
    texts,
    st.lists(st.tuples(floats, texts), max_size=3),
    st.lists(runs, max_size=4),
    maybe(floats),
    maybe(floats),
    maybe(ints),
)
