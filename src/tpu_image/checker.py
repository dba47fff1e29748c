"""The checker alone, as the single file ``tpu-image.pyz`` that ``make zipapp`` makes: a check.

It needs Python 3.10 or newer and nothing else, so that it can be copied onto a machine and run there. What it
prints and how it exits is as for ``tpu-image check --format json``, or with ``--format text`` as for people.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from tpu_image import __version__, catalogue
from tpu_image.catalogue import choices
from tpu_image.catalogue.requirement import Platform, Profile
from tpu_image.inspection import inspect, opened
from tpu_image.output import OutputError, emit
from tpu_image.report import json
from tpu_image.report.model import Report
from tpu_image.report.printable import printable
from tpu_image.trees.base import TreeError

OK = 0
NOT_OK = 1
UNUSABLE = 2
INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Run the checker's command line and give its exit status."""
    try:
        return _run(_parser().parse_args(arguments))
    except KeyboardInterrupt:
        return _refuse("interrupted", INTERRUPTED)
    except (TreeError, OutputError, OSError) as error:
        return _refuse(str(error))
    except Exception as error:  # a fault of ours must not become a traceback on somebody's machine
        return _refuse(f"internal error: {type(error).__name__}: {error}")


def _run(options: argparse.Namespace) -> int:
    if options.explain:
        emit(json.dump(json.requirements_document(catalogue.select(options.only))))
        return OK
    with opened(options.target, options.live) as target:
        report = inspect(target, _profile(options), options.only)
    emit(_rendered(report, options.format))
    return OK if report.ok else NOT_OK


def _rendered(report: Report, form: str) -> str:
    if form == "json":
        return json.render(report)
    from tpu_image.report import text

    return text.render(report)


def _refuse(line: str, status: int = UNUSABLE) -> int:
    print(f"tpu-image: {printable(line)}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """A parser that refuses in one line."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(_refuse(f"{message}; see --help"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tpu-image.pyz", description="Check the root of a TPU image, or this machine.")
    parser.add_argument("target", nargs="?", default="/", help="root of an image; / (default): this machine")
    parser.add_argument("--live", metavar="DIR", help="recorded /proc, /sys, /dev and /run below DIR")
    parser.add_argument("--platform", type=_word(choices.platform), help="compute-engine (default) or gke")
    parser.add_argument("--tpu", metavar="LIST", type=_word(choices.generations), help="such as v5p,v6e")
    parser.add_argument("--telemetry", action="store_true", help="also require the telemetry collector")
    parser.add_argument("--device-group", metavar="NAME", type=_word(choices.device_group))
    parser.add_argument("--no-agent", action="store_true", help="the vBar agent comes from elsewhere")
    waive = parser.add_argument("--waive", metavar="ID=REASON", action="append", default=[])
    waive.type = _word(choices.waiver)
    only = parser.add_argument("--only", metavar="ID", action="append", default=[])
    only.type = _word(choices.selection)
    parser.add_argument("--format", choices=["json", "text"], default="json", help="default: json")
    parser.add_argument("--explain", action="store_true", help="print what the requirements are instead")
    parser.add_argument("--version", action="version", version=f"tpu-image {__version__}")
    return parser


def _word(read: Callable[[str], object]) -> Callable[[str], object]:
    """Make an argument's type of a choice, whose refusals keep their words."""

    def convert(text: str) -> object:
        try:
            return read(text)
        except (choices.ChoiceError, catalogue.UnknownRequirementError) as error:
            raise argparse.ArgumentTypeError(str(error.args[0])) from error

    return convert


def _profile(options: argparse.Namespace) -> Profile:
    profile = Profile(
        platform=options.platform or Platform.COMPUTE_ENGINE,
        telemetry=options.telemetry,
        device_group=options.device_group or "",
        agent_elsewhere=options.no_agent,
        waivers=dict(options.waive),
    )
    return replace(profile, generations=options.tpu) if options.tpu else profile
