"""The ``tpu-env`` attribute as the file that shells, services and the TPU software read.

All or nothing: a value that cannot be represented refuses the attribute and leaves the file as it was. A file
that lacks one of its settings would be worse than an old one, since readers take what is missing as unset.
"""

from __future__ import annotations

from collections.abc import Iterator

from yaml import error as yaml_error
from yaml import events as yaml_events
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.scanner import Scanner

from tpu_image.formats import FormatError, tpu_env
from tpu_image.runtime import atomic_file, settings
from tpu_image.runtime.metadata import EmptyAnswerError, MetadataServer

HEADING = f"""\
The {settings.ATTRIBUTE} attribute of this VM, written by tpu-image at every boot.
For shells (source) and systemd (EnvironmentFile=); changes made here are lost."""


def read_attribute(server: MetadataServer) -> dict[str, str]:
    """Read the settings that the metadata server has for this machine.

    Raises:
        MetadataError: the attribute could not be read, is not set or is empty.
        FormatError: it is not what it should be.
    """
    document = server.read(f"instance/attributes/{settings.ATTRIBUTE}")
    if not document.strip():
        raise EmptyAnswerError(f"the attribute {settings.ATTRIBUTE} is empty")
    return parse(document)


def parse(document: bytes) -> dict[str, str]:
    """Read a flat mapping in YAML; every value is the text that was written, so ``yes``, ``1e3``, ``2x2x2`` stay.

    Raises:
        FormatError: it is not UTF-8, not YAML or not one flat mapping, or a key stands there twice.
    """
    try:
        text = document.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError("is not UTF-8", document.count(b"\n", 0, error.start) + 1) from error
    try:
        return _mapping(_events(text))
    except yaml_error.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise FormatError(f"is not YAML: {error.problem or error.context}", line) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise FormatError(f"holds the character U+{error.character:04X}, which YAML has not", line) from error


class _Parser(Reader, Scanner, Parser):
    """The part of PyYAML's loaders that gives events: it takes half as long to load as all of them."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


def _events(text: str) -> Iterator[yaml_events.Event]:
    parser = _Parser(text)
    while parser.check_event():
        event: yaml_events.Event = parser.get_event()  # type: ignore[no-untyped-call]
        yield event


def _mapping(events: Iterator[yaml_events.Event]) -> dict[str, str]:
    """Read from the parser's events, so that deep nesting is refused where it begins and never recursed into."""
    _skip(events, yaml_events.StreamStartEvent, yaml_events.DocumentStartEvent)
    root = next(events)
    if not isinstance(root, yaml_events.MappingStartEvent):
        raise FormatError("is not a mapping of names to values", _line(root))
    values: dict[str, str] = {}
    key = next(events)
    while not isinstance(key, yaml_events.MappingEndEvent):
        name = _scalar(key, "a key")
        if name in values:
            raise FormatError(f"{_shown(name)} stands there twice", _line(key))
        values[name] = _scalar(next(events), f"the value of {_shown(name)}")
        key = next(events)
    _skip(events, yaml_events.DocumentEndEvent)
    following = next(events)
    if not isinstance(following, yaml_events.StreamEndEvent):
        raise FormatError("holds a second document", _line(following))
    return values


def _skip(events: Iterator[yaml_events.Event], *kinds: type[yaml_events.Event]) -> None:
    for kind in kinds:
        event = next(events)
        if not isinstance(event, kind):
            raise FormatError("is empty", _line(event))


def _scalar(event: yaml_events.Event, what: str) -> str:
    """Give the text of a plain, quoted or block scalar."""
    if isinstance(event, yaml_events.ScalarEvent) and event.tag in (None, "tag:yaml.org,2002:str"):
        return str(event.value)
    if isinstance(event, yaml_events.ScalarEvent):
        raise FormatError(f"{what} has the tag {_shown(event.tag or '')}", _line(event))
    if isinstance(event, yaml_events.AliasEvent):
        raise FormatError(f"{what} is an alias", _line(event))
    raise FormatError(f"{what} is nested: it must be one text", _line(event))


def _line(event: yaml_events.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")


def update(
    server: MetadataServer, owner: atomic_file.Owner, directory: str = settings.DIRECTORY
) -> tuple[int, bool]:
    """Bring the file in line with the attribute.

    Returns:
        How many variables it holds, and whether it had to be written.

    Raises:
        MetadataError, FormatError: see :func:`read_attribute`; the file is as it was.
        OSError: it could not be written; it is as it was.
    """
    values = read_attribute(server)
    content = tpu_env.serialise(values, HEADING).encode()
    return len(values), atomic_file.write_in_home(directory, settings.FILE_NAME, content, owner)
