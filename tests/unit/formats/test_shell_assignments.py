"""Shell assignments: what is read is what a shell would have, or is said to be unknown."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tpu_image.formats import FormatError
from tpu_image.formats.edits import Edit
from tpu_image.formats.shell_assignments import ShellFile, Value, evaluate

NAMES = ("A", "B", "GRUB_X", "_c1")


def values(text: str, **initial: str) -> dict[str, str]:
    """The variables after a file, with ? for every part that is not known."""
    variables = evaluate([ShellFile.parse("/f", text)], initial)
    return {name: value.text.replace("\0", "?") for name, value in variables.values.items()}


READ = {
    "no quotes": ("A=x", {"A": "x"}),
    "single quotes keep everything": ("A='$B \\\"'", {"A": '$B \\"'}),
    "double quotes and escapes": (r'A="a\"b\\c\$d\`e\f"', {"A": r'a"b\c$d`e\f'}),
    "a mix of quotes in one word": ("""A=a'b'"c"\\ d""", {"A": "abc d"}),
    "comments and blank lines": ("# A=no\n\n  A=yes # B=no\n", {"A": "yes"}),
    "a hash inside a word": ("A=x#y", {"A": "x#y"}),
    "export": ("export A=1 B='2 3'\nexport A", {"A": "1", "B": "2 3"}),
    "several assignments on a line": ("A=1 B=$A; A=3", {"A": "3", "B": "1"}),
    "appending": ("A=1\nA+=' 2'\nB+=x", {"A": "1 2", "B": "?x"}),
    "references": ('A=1\nB="${A} $A"\nA=2', {"A": "2", "B": "1 1"}),
    "a reference to nothing known": ("A=$HOME/x", {"A": "?/x"}),
    "a continued line": ('A="a \\\nb"\nB=c\\\nd', {"A": "a b", "B": "cd"}),
    "a value over several lines": ("A='a\nb'", {"A": "a\nb"}),
    "unset": ("A=1\nunset A\nB=x$A", {"B": "x"}),
    "carriage returns stay": ("A=1\r\n", {"A": "1\r"}),
    "an empty value": ("A=\nB=''", {"A": "", "B": ""}),
    "another command is no assignment": ("echo A=1\ntrue", {}),
    "a substitution is unknown, what follows is not": ('A="$(cat x) idle=poll"', {"A": "? idle=poll"}),
    "backticks": ("A=`lsb_release -i || echo Debian`", {"A": "?"}),
    "a Red Hat default": (
        """A="$(sed 's, release .*$,,g' /etc/system-release)"\nB=1""",
        {"A": "?", "B": "1"},
    ),
    "an Ubuntu default": (
        "A=`( . /etc/os-release; echo ${NAME:-Ubuntu} ) 2>/dev/null || echo Ubuntu`\nB=1",
        {"A": "?", "B": "1"},
    ),
    "nested substitutions": ('A="$(a "$(b ")")" \')\')x"', {"A": "?x"}),
    "arithmetic may assign": ("A=1 B=2\nC=$((A=5))", {"A": "?", "B": "2", "C": "?"}),
    "a default may assign": (": ${A:=1}\nB=2", {"A": "?", "B": "2"}),
    "a tilde": ("A=~/x:~root:y~\nB=\\~", {"A": "?/x:?:y~", "B": "~"}),
    "an if": ("A=1 B=1\nif [ -e x ]; then A=2; fi\nC=1", {"A": "?", "B": "1", "C": "1"}),
    "a case": ("case $x in a|b) A=1;; (c) B=1 ;; *) esac; C=$D", {"A": "?", "B": "?", "C": "?"}),
    "a loop": ("for A in 1 2; do B=$A; done\nC=1", {"A": "?", "B": "?", "C": "1"}),
    "behind and": ("[ -e x ] && A=1\nB=1 && C=1", {"A": "?", "B": "1", "C": "?"}),
    "a pipeline": ("A=1 | cat\necho | B=1", {"A": "?", "B": "?"}),
    "in the background": ("A=1 &\nB=1", {"A": "?", "B": "1"}),
    "a test with operators": ("[[ a < b && c =~ (d|e) ]] || A=1\nB=1", {"A": "?", "B": "1"}),
    "a function that is not called": ("f() { A=1; }\nB=1", {"A": "?", "B": "1"}),
    "a function that is called": ("f() { A=1; }\nB=1\nf\nC=1", {"C": "1"}),
    "sourcing": ("A=1\n. /etc/other\nB=1", {"B": "1"}),
    "eval": ("A=1\neval B=2\nC=1", {"C": "1"}),
    "set for one command": ("A=1\nA=2 true", {"A": "?"}),
    "a return": ("A=1\nreturn 0\nB=1", {"B": "?"}),
    "a list": ("A=(1 2)\nB=1\nB[1]=3", {"A": "?", "B": "?"}),
    "read": ("A=1 B=1\nread A < file", {"A": "?", "B": "1", "REPLY": "?", "MAPFILE": "?"}),
    "declare settles nothing later": (
        "declare -i A\nA=1+1",
        {"A": "?", "i": "?", "REPLY": "?", "MAPFILE": "?"},
    ),
    "a here-document": ("cat <<-'E' <<F\nA=1\n\tE\nA=2\nF\nB=1", {"B": "1"}),
    "a here-document that assigns": ("cat <<E\n${A:=1}\nE\nB=1", {"A": "?", "B": "1"}),
    "set -a": ("set -a\nA=1\nset +a", {"A": "1"}),
    "a variable of the shell": ("RANDOM=5\nA=$RANDOM", {"RANDOM": "?", "A": "?"}),
    "the last assignment wins": ("A=1\nA=2\n#A=3", {"A": "2"}),
}


@pytest.mark.parametrize(("text", "expected"), READ.values(), ids=READ)
def test_a_file_is_read_as_a_shell_reads_it(text: str, expected: dict[str, str]) -> None:
    assert values(text) == expected


NOT_FOLLOWED = {
    "a quote that is not closed": 'A=1\nB="x',
    "a substitution that is not closed": "A=1\nB=$(x",
    "an if that is not closed": "A=1\nif true; then",
    "a closer of nothing": "A=1\nfi",
    "a NUL byte": "A=1\n\0",
    "a case inside a substitution": "A=1\nB=$(case x in y) z;; esac)",
    "a read-only variable": "A=1\nUID=5",
    "a backslash at the end": "A=1\\",
}


@pytest.mark.parametrize("text", NOT_FOLLOWED.values(), ids=NOT_FOLLOWED)
def test_what_cannot_be_followed_leaves_everything_unknown(text: str) -> None:
    variables = evaluate([ShellFile.parse("/f", text)])
    value = variables.get("A")
    assert value is not None
    assert value.known is None
    assert value.unknowns[0].path == "/f"


def test_an_unknown_names_file_line_and_reason() -> None:
    first = ShellFile.parse("/one", "A=1\n")
    second = ShellFile.parse("/two", "\nA=$(cat x)\n")
    value = evaluate([first, second]).get("A")
    assert value is not None
    unknown = value.unknowns[0]
    assert (unknown.path, unknown.line, unknown.reason) == ("/two", 2, "a command substitution")


def test_a_later_file_settles_what_an_earlier_one_left_unknown() -> None:
    files = [ShellFile.parse("/one", '. x\nif y; then A=1; fi\nB="'), ShellFile.parse("/two", "A=2")]
    assert evaluate(files).known("A") == "2"


def test_what_is_set_before_the_first_file_is_known() -> None:
    assert values('A="$A x"', A="")["A"] == " x"


def test_growing_without_end_is_unknown_and_quick() -> None:
    started = time.process_time()
    for text in ("A=x\n" + 'A="$A$A"\n' * 20_000, "A=" + "\\$" * 100_000, "A=" + "$B" * 100_000):
        assert "?" in values(text)["A"]
    assert time.process_time() - started < 10


def test_a_file_that_is_too_long_is_refused() -> None:
    with pytest.raises(FormatError, match="longer than"):
        ShellFile.parse("/f", "#" * 300_000)


@given(st.text(alphabet="AB=\"'\\$`(){}[]#;&|<> \n\tx~:+if\0é", max_size=60))
def test_any_text_is_read_without_an_error(text: str) -> None:
    file = ShellFile.parse("/f", text)
    assert file.text == text
    evaluate([file])


# Against bash: files of the supported kind, made of statements of every shape.

characters = st.text(alphabet="ab =,$\"'\\#~:;*é\t!{}", max_size=6)


def in_double(text: str) -> str:
    return '"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"'


pieces = st.one_of(
    characters.map(in_double),
    characters.map(lambda text: "'" + text.replace("'", "") + "'"),
    characters.map(lambda text: re.sub(r"([^a-b=,])", r"\\\1", text)),
    st.sampled_from(NAMES).map(lambda name: f"${{{name}}}"),
    st.sampled_from(NAMES).map(lambda name: f'"x $${name} \\\ny"'.replace("$$", "$")),
    st.sampled_from(
        ["$(echo s)", "`echo t`", "~", "$'a\\n'", "$((1+1))", "${A:-d}", '"${B:=e}"', "a\\b", '"\\q"', "$"]
    ),
)
words = st.lists(pieces, max_size=4).map("".join)
assignments = st.builds("{}{}{}".format, st.sampled_from(NAMES), st.sampled_from(["=", "=", "+="]), words)
lines = st.one_of(
    assignments,
    st.lists(assignments, min_size=1, max_size=3).map(" ".join),
    st.lists(assignments, min_size=1, max_size=3).map("; ".join),
    assignments.map(lambda a: f"export {a}"),
    assignments.map(lambda a: f"  {a} # comment {a}"),
    assignments.map(lambda a: "# " + a.replace("\n", " ")),
    st.sampled_from(NAMES).map(lambda name: f"unset {name}"),
    st.tuples(assignments, assignments).map(lambda t: f"if true; then {t[0]}; else {t[1]}; fi"),
    st.tuples(assignments, assignments).map(lambda t: f"false && {t[0]}\n{t[1]} || true"),
    st.tuples(assignments, assignments).map(lambda t: f"case x in (x) {t[0]};; y|z) {t[1]};; esac"),
    st.tuples(assignments, assignments).map(lambda t: f"f() {{ {t[0]}\n}}; {t[1]}; f"),
    st.tuples(assignments, assignments).map(lambda t: f"for A in 1 2; do {t[0]}; done; ({t[1]})"),
    assignments.map(lambda a: f"{a} | cat; {a} true; cat <<E >/dev/null\n{a.replace(chr(10), '')}\nE"),
    st.just(""),
)
files = st.lists(lines, max_size=6).map("\n".join)


def bash(path: Path) -> dict[str, str]:
    """The variables that a real bash has after sourcing a file with an empty environment."""
    script = 'cd /; unset A B _c1; . "$0" >/dev/null 2>&1; export A B GRUB_X _c1; exec env -0'
    done = subprocess.run(
        ["env", "-i", "bash", "-c", script, path], capture_output=True, check=True, timeout=20
    )
    items = [item.partition(b"=") for item in done.stdout.split(b"\0")]
    return {name.decode(): value.decode("utf-8", "surrogateescape") for name, _, value in items}


def agrees(value: Value, real: str) -> bool:
    """Whether the known parts of a value are those of the real one."""
    known = [re.escape(text) for text in value.text.split("\0")]
    return re.fullmatch(".*".join(known), real, re.DOTALL) is not None


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=files)
def test_bash_has_the_same_values_or_they_are_unknown(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    real = bash(path)
    variables = evaluate([ShellFile.parse("/f", text)])
    for name in NAMES:
        value = variables.get(name)
        if value is None:
            assert name not in real or real[name] == ""
        else:
            assert agrees(value, real.get(name, "")), (name, value.text, real.get(name))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(assignments, min_size=1, max_size=4).map("\n".join), new=characters, data=st.data())
def test_a_value_put_in_is_the_value_that_bash_reads(
    text: str, new: str, tmp_path: Path, data: st.DataObject
) -> None:
    file = ShellFile.parse("/f", text)
    assume(file.assignments)
    chosen = data.draw(st.sampled_from(file.assignments))
    edited = file.with_value(chosen, new)
    assert edited.text[: chosen.value.start] == text[: chosen.value.start]
    assert edited.text.endswith(text[chosen.value.end :])
    own = edited.text[chosen.start : len(edited.text) - len(text) + chosen.value.end]
    path = tmp_path / "file"
    path.write_text(own)
    assert bash(path)[chosen.name] == new


@settings(max_examples=300, deadline=None)
@given(assignment=assignments, new=characters, data=st.data())
def test_an_edit_inside_a_value_changes_that_part_alone(
    assignment: str, new: str, data: st.DataObject
) -> None:
    file = ShellFile.parse("/f", assignment)
    assume(file.assignments)
    chosen = file.assignments[0]
    value = evaluate([file], dict.fromkeys(NAMES, "")).values[chosen.name]
    start = data.draw(st.integers(0, len(value.text)))
    end = data.draw(st.integers(start, len(value.text)))
    place = value.locate(start, end)
    assume(place is not None)
    assert place is not None
    edited = file.with_value_edits({place[0]: [Edit(place[1], place[1] + end - start, new)]})
    after = evaluate([edited], dict.fromkeys(NAMES, "")).values[chosen.name]
    assert after.text == value.text[:start] + new + value.text[end:]


EDITED = {
    "inside double quotes": ('A="a b" # c\n', Edit(1, 1, " x"), 'A="a x b" # c\n'),
    "inside single quotes": ("A='a b'", Edit(2, 3, "it's"), "A='a it'\\''s'"),
    "without quotes": ("A=ab B=1", Edit(2, 2, " x"), 'A=ab" x" B=1'),
    "an empty value": ('A="" # x', Edit(0, 0, "y"), 'A="y" # x'),
    "no value": ("A=\n", Edit(0, 0, "y z"), 'A="y z"\n'),
    "behind a reference": ('A="${B}"', Edit(1, 1, " x"), 'A="${B} x"'),
    "glued to a bare reference": ('A="$B"', Edit(1, 1, "x"), 'A="${B}""x"'),
    "an escaped character": (r'A="a\$b"', Edit(1, 2, ""), 'A="ab"'),
    "needing escapes": ('A="a"', Edit(1, 1, '"$x'), r'A="a\"\$x"'),
    "over a change of quotes": ("""A="ab"'cd'""", Edit(1, 3, "x"), """A="ax"'d'"""),
}


@pytest.mark.parametrize(("text", "edit", "expected"), EDITED.values(), ids=EDITED)
def test_an_edit_keeps_the_rest_as_written(text: str, edit: Edit, expected: str) -> None:
    file = ShellFile.parse("/f", text)
    assert file.with_value_edits({file.assignments[0]: [edit]}).text == expected


def test_the_quotes_of_a_value_are_kept_where_they_can_hold_the_new_one() -> None:
    file = ShellFile.parse("/f", "A='x'\nB=y\nC=\"z\"")
    a, b, c = file.assignments
    assert file.with_value(a, "n m").text.startswith("A='n m'\n")
    assert file.with_value(a, "n'm").text.startswith('A="n\'m"\n')
    assert "\nB=safe-1\n" in file.with_value(b, "safe-1").text
    assert file.with_value(c, "$").text.endswith('C="\\$"')


def test_os_release_is_read() -> None:
    text = 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nVERSION_ID="22.04"\nID=ubuntu\n'
    variables = evaluate([ShellFile.parse("/etc/os-release", text)])
    assert (variables.known("ID"), variables.known("VERSION_ID")) == ("ubuntu", "22.04")
