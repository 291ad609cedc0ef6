"""TOML documents of every shape, valid by construction: a statement stays when tomllib takes it.

Keys come from a few names, so that tables meet again; values are full of what looks like syntax and
is none. Every string begins with a number, so that a test can see that it looks at a beginning.
"""

from __future__ import annotations

import tomllib

from hypothesis import strategies as st

NAMES = ("a", "b", "c-d", "E_1", "7")
ODD_NAMES = ('"a"', "'b'", '"x y"', "'p.q'", '"#"', '"\\u0061\\n"', '"[z]"', "''", '"="', '"é"')

blank = st.sampled_from(("", " ", "\t", "  "))
comment = st.sampled_from(("", "# plain", '# [a] b = "c', "#", "# '''"))
break_ = st.sampled_from(("", "\n", " \n\t", "\n# ] , } = [\n", "\n\n"))
part = st.one_of(st.sampled_from(NAMES), st.sampled_from(ODD_NAMES))


@st.composite
def dotted(draw: st.DrawFn) -> str:
    parts = draw(st.lists(part, min_size=1, max_size=3))
    return (draw(blank) + "." + draw(blank)).join(parts)


@st.composite
def scalar(draw: st.DrawFn) -> str:
    number = draw(st.integers(1, 9999))
    form = draw(
        st.sampled_from(
            (
                "{n}",
                '"{n} ]}}, # = [a]"',
                "'{n} \"'",
                '"{n} \\" \\\\"',
                '"""{n}\n[a]\nb = 1 # ""  \\""""',
                '"""{n}\n"quoted"\\\n  on"""""',
                "'''{n}\n[[a]]\n'it''s'''''",
                '"""\n{n}"""',
                "{n}.5e-3",
                "+{n}_0",
                "{n:04}-05-27 07:32:00.5Z",
                "{n:04}-05-27",
            )
        )
    )
    return form.format(n=number)


@st.composite
def array(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    items = draw(st.lists(inner, max_size=3))
    gap = draw(break_)
    text = ("," + gap).join(draw(blank) + item + draw(break_) for item in items)
    trailing: bool = draw(st.booleans())
    comma = "," + draw(break_) if items and trailing else ""
    return f"[{gap}{text}{comma}]"


@st.composite
def inline_table(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    pairs = draw(st.lists(st.tuples(dotted(), inner), max_size=3))
    equals = draw(blank) + "=" + draw(blank)
    kept: list[str] = []
    for key, value in pairs:
        if is_toml("k = {" + ", ".join([*kept, f"{key} = {value}"]) + "}"):
            kept.append(f"{key}{equals}{value}{draw(blank)}")
    return "{" + draw(blank) + ("," + draw(blank)).join(kept) + "}"


value = st.recursive(
    st.one_of(scalar(), st.sampled_from(("true", "false", "inf", "-nan", "[]", "{}"))),
    lambda inner: st.one_of(array(inner), inline_table(inner)),
    max_leaves=6,
)


@st.composite
def statement(draw: st.DrawFn) -> str:
    head = draw(blank)
    tail = draw(blank) + draw(comment)
    kind = draw(st.sampled_from(("pair", "pair", "pair", "table", "tables", "nothing")))
    key = draw(blank) + draw(dotted()) + draw(blank)
    if kind == "table":
        return f"{head}[{key}]{tail}"
    if kind == "tables":
        return f"{head}[[{key}]]{tail}"
    if kind == "nothing":
        return tail
    return f"{head}{key.strip()}{draw(blank)}={draw(blank)}{draw(value)}{tail}"


@st.composite
def documents(draw: st.DrawFn) -> str:
    text = ""
    for line in draw(st.lists(statement(), max_size=12)):
        if is_toml(text + line):
            text += line + "\n"
    if draw(st.booleans()):
        text = text.removesuffix("\n")
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


def is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
