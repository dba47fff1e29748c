"""cloud-configs as data: what each is about, what is found in it, and whether cloud-init's schema objects."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """``found`` is line, part of the message and whether it breaks; ``schema`` is what 22.4's schema says."""

    text: str
    found: tuple[tuple[int, str, bool], ...] = ()
    schema: bool | None = None
    """None: it objects where something is found."""
    raises: str = ""
    """The start of the exception with which the module that writes files stops; empty where it does not."""

    @property
    def schema_objects(self) -> bool:
        return bool(self.found) if self.schema is None else self.schema


def entry(lines: str) -> str:
    """A cloud-config with one entry of write_files: its path on line 3, the given lines from line 4 on."""
    indented = "".join(f"  {line}\n" for line in lines.splitlines())
    return f"#cloud-config\nwrite_files:\n- path: /run/made/file\n{indented}"


def commands(*items: str) -> str:
    """A cloud-config with these items of runcmd from line 3 on."""
    return "#cloud-config\nruncmd:\n" + "".join(f"- {item}\n" for item in items)


GZIP_OF_HELLO = "H4sIAAAAAAAC/8tIzcnJBwCGphA2BQAAAA=="

CASES = {
    "good": Case(entry("permissions: '0444'\nowner: root\ncontent: |\n  text")),
    "good with everything": Case(
        entry("permissions: '0o755'\nowner: root:root\nencoding: b64\ncontent: aGVsbG8=\nappend: true")
    ),
    "gzip": Case(entry("encoding: gz+b64\ncontent: " + GZIP_OF_HELLO)),
    "binary gzip": Case(entry("encoding: gzip\ncontent: !!binary " + GZIP_OF_HELLO)),
    "mode without quotes that comes out right": Case(
        entry("permissions: 0444"), ((4, "is the number 292: the mode is 0444 all the same", False),)
    ),
    "mode without quotes nor zero": Case(
        entry("permissions: 644"), ((4, "is the number 644: the mode becomes 1204", True),)
    ),
    "mode that is no octal number": Case(
        entry("permissions: '0999'"), ((4, "not an octal number: the mode is 0644", True),), schema=False
    ),
    "mode in letters": Case(
        entry("permissions: rw-r--r--"), ((4, "not an octal number", True),), schema=False
    ),
    "mode blank": Case(entry("permissions:"), ((4, "blank: the mode is 0644", False),)),
    "mode of nothing": Case(
        entry("permissions: '0000'"), ((4, "mode 0000 is not applied: the mode is 0644", True),), schema=False
    ),
    "mode as a list": Case(entry("permissions: ['0644']"), ((4, "not an octal number", True),)),
    "permission": Case(
        entry("permission: '0600'"),
        ((4, "unknown key 'permission' in write_files is ignored: the mode is 0644", True),),
    ),
    "mode": Case(entry("mode: '0600'"), ((4, "ignored: the mode is 0644", True),)),
    "contents": Case(entry("contents: x"), ((4, "ignored: the file stays empty", True),)),
    "unlike any key": Case(entry("zzzz: x"), ((4, "unknown key 'zzzz' in write_files is ignored", True),)),
    "no path": Case(
        "#cloud-config\nwrite_files:\n- content: x\n", ((3, "has no path, so it is not written", True),)
    ),
    "path that is a number": Case(
        "#cloud-config\nwrite_files:\n- path: 5\n",
        ((3, "path is not text: cloud-init stops there", True),),
        raises="TypeError",
    ),
    "relative path": Case(
        "#cloud-config\nwrite_files:\n- path: run/made/file\n",
        ((3, "relative: it is taken from /", False),),
        schema=False,
    ),
    "content blank": Case(
        entry("content:"),
        ((4, "content is not text: cloud-init stops there", True),),
        raises="AttributeError",
    ),
    "content that is a number": Case(
        entry("content: 5"),
        ((4, "content is not text: cloud-init stops there", True),),
        raises="AttributeError",
    ),
    "owner that is a number": Case(
        entry("owner: 5"), ((4, "owner is not text: cloud-init stops there", True),), raises="AttributeError"
    ),
    "owner nobody knows": Case(
        entry("owner: ubuntu-absent"),
        ((4, "user 'ubuntu-absent' does not exist when /run/made/file is written", True),),
        schema=False,
        raises="OSError",
    ),
    "group nobody knows": Case(
        entry("owner: root:absent"),
        ((4, "group 'absent' does not exist", True),),
        schema=False,
        raises="OSError",
    ),
    "owner by number": Case(
        entry("owner: '0:0'"),
        ((4, "user '0' does not exist", True), (4, "group '0' does not exist", True)),
        schema=False,
        raises="OSError",
    ),
    "owner left alone": Case(entry("owner: '-1:none'")),
    "owner of a deferred file": Case(entry("owner: made-later\ndefer: true")),
    "unknown encoding": Case(
        entry("encoding: base-64\ncontent: aGVsbG8="), ((4, "written undecoded", True),)
    ),
    "encoding in upper case": Case(entry("encoding: B64\ncontent: aGVsbG8="), ((4, "works", False),)),
    "base64 that is none": Case(
        entry("encoding: b64\ncontent: aGVsbG8"), ((5, "no valid b64", True),), schema=False, raises="Error"
    ),
    "base64 with a foreign character": Case(
        entry("encoding: b64\ncontent: aGVsbG8=\u00e9"),
        ((5, "no valid b64", True),),
        schema=False,
        raises="ValueError",
    ),
    "gzip that is none": Case(
        entry("encoding: gzip\ncontent: hello"),
        ((5, "no valid gzip", True),),
        schema=False,
        raises="DecompressionError",
    ),
    "append in quotes": Case(entry("append: 'yes'"), ((4, "takes it for true", False),)),
    "append as a word": Case(entry("append: maybe"), ((4, "takes it for false", False),)),
    "one entry without its dash": Case(
        "#cloud-config\nwrite_files:\n  path: /x\n",
        ((3, "write_files is not a list", True),),
        raises="AttributeError",
    ),
    "entry that is a path": Case(
        "#cloud-config\nwrite_files: [/x]\n", ((2, "not a mapping", True),), raises="AttributeError"
    ),
    "key twice": Case(
        entry("content: a\ncontent: b"),
        ((5, "'content' stands again: cloud-init drops the one on line 4", True),),
        schema=False,
    ),
    "list twice": Case(
        "#cloud-config\nruncmd: [a]\nruncmd: [b]\n", ((3, "drops the one on line 2", True),), schema=False
    ),
    "misspelt list": Case(
        "#cloud-config\nwrite-files: []\n", ((2, "unknown key 'write-files' is ignored", True),), schema=False
    ),
    "commands": Case(commands("echo a", "[echo, a]", "")),
    "command with a colon": Case(
        commands("echo a", "echo b: c"), ((4, "is a mapping, since it holds ': '", True),), raises="TypeError"
    ),
    "command that is a number": Case(commands("5"), ((3, "is not text", True),), raises="TypeError"),
    "command with a number": Case(commands("[sleep, 5]"), ((3, "wants strings", False),)),
    "commands as text": Case(
        "#cloud-config\nruncmd: echo a\n", ((2, "runcmd is not a list", True),), raises="TypeError"
    ),
    "script without execute bit": Case(
        entry("permissions: '0444'\ncontent: x") + "runcmd:\n- /run/made/file now\n",
        ((7, "written with mode 0444 and run as a program: permission denied", True),),
        schema=False,
    ),
    "script through its interpreter": Case(
        entry("permissions: '0444'\ncontent: x") + "runcmd:\n- sh /run/made/file\n"
    ),
    "script made executable": Case(
        entry("permissions: '0444'\ncontent: x") + "runcmd:\n- chmod +x /run/made/file\n- [/run/made/file]\n"
    ),
}

MODES = (
    "0444",
    "0",
    "'0'",
    "444",
    "'0444'",
    "'444'",
    "0o644",
    "'0999'",
    "rwx",
    "0x1ff",
    "",
    "'0_644'",
    "0.5",
    "true",
    "[1]",
)
"""Spellings of permissions; the real cloud-init says what they result in."""

UNUSABLE = {
    "the document's indentation": ("write_files:\n - path: /x\n    permissions: 0444\n", 3),
    "a tab": ("runcmd:\n\t- x\n", 2),
    "an unknown tag": ("runcmd: !include x\n", 1),
    "a list": ("- write_files\n", 1),
    "a text": ("just text\n", 1),
    "two documents": ("a: 1\n---\nb: 2\n", 2),
}
"""Texts that cloud-init ignores as a whole, with the line to name."""
