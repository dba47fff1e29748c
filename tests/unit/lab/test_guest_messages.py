"""A guest may say anything: what is understood is kept within bounds, the rest is told as a fault."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.catalogue.requirement import Status
from tpu_image.lab import guest_report, messages
from tpu_image.lab.guest_report import COUNT_LIMIT, FAULTS_LIMIT, GuestReportBuilder
from tpu_image.lab.messages import TEXT_LIMIT, GuestError, Message, Reader
from tpu_image.lab.result import BootTask

DEVICE = {
    "kind": "device",
    "address": "0000:00:08.0",
    "vendor": 0x1AE0,
    "device": 0x6F,
    "subsystem_vendor": 0x1AE0,
    "subsystem_device": 0xD1,
    "driver": "vfio-pci",
    "group": "5",
    "nodes": [{"path": "/dev/vfio/5", "mode": 0o666, "uid": 0, "gid": 0}],
}
STEP = {
    "kind": "step",
    "address": "0000:00:08.0",
    "interface": "group",
    "name": "RESET",
    "ok": True,
    "detail": "",
}
VERDICT = {
    "requirement": "machine.thp",
    "status": "pass",
    "message": "fine",
    "evidence": [{"path": "/sys", "line": 0, "found": "", "expected": ""}],
    "remedy": "",
}


def taken(*values: dict[str, Any]) -> GuestReportBuilder:
    builder = GuestReportBuilder()
    for each in values:
        builder.take(Message(each))
    return builder


def test_a_device_and_its_steps_come_together() -> None:
    (device,) = taken(STEP, DEVICE).build().devices
    assert (device.generation, device.group, device.steps[0].name) == ("v6e", "5", "RESET")
    assert device.nodes[0].mode == 0o666


def test_what_the_guest_is_at_is_safe_to_show() -> None:
    assert taken({"kind": "step-begins", "name": "\x1b[2Jcheck\n"}).doing == r"\x1b[2Jcheck\n"


def test_verdicts_of_the_checker_are_read() -> None:
    builder = taken({"kind": "check", "who": "user", "document": {"verdicts": [VERDICT]}})
    assert builder.verdicts["user"]["machine.thp"].status is Status.PASS


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"kind": 7},
        {"kind": "unheard-of"},
        {**DEVICE, "vendor": "0x1ae0"},
        {**DEVICE, "vendor": True},
        {**DEVICE, "vendor": 1 << 80},
        {**DEVICE, "nodes": "none"},
        {**DEVICE, "nodes": [1]},
        {**STEP, "ok": "yes"},
        {"kind": "settled", "settled": None},
        {"kind": "blame", "unit": "x", "seconds": float("inf")},
        {"kind": "blame", "unit": "x", "seconds": 10**400},
        {"kind": "check", "who": "user", "document": []},
        {"kind": "check", "who": "user", "document": {"verdicts": [{**VERDICT, "status": "perfect"}]}},
        {"kind": "failed-units", "units": [1, 2]},
        {**DEVICE, "vendor": -1},
        {**DEVICE, "device": 0x10000},
        {**DEVICE, "nodes": [{"path": "/dev/vfio/5", "mode": -1, "uid": 0, "gid": 0}]},
        {"kind": "check", "who": "a neighbour", "document": {"verdicts": [VERDICT]}},
        {
            "kind": "check",
            "who": "user",
            "document": {
                "verdicts": [
                    {**VERDICT, "evidence": [{"path": "/", "line": -1, "found": "", "expected": ""}]}
                ]
            },
        },
    ],
)
def test_what_is_not_understood_is_a_fault(values: dict[str, Any]) -> None:
    report = taken(values).build()
    assert len(report.faults) == 1
    assert report.devices == ()


def test_a_flood_of_faults_devices_and_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_report, "COUNT_LIMIT", 10)
    builder = taken(*({"kind": "?"} for _ in range(200)))
    for number in range(50):
        builder.take(Message({**DEVICE, "address": str(number), "driver": "x" * 10_000}))
        builder.take(Message({**STEP, "address": str(number)}))
        builder.take(Message({**STEP, "address": "0"}))
    report = builder.build()
    assert len(report.faults) == FAULTS_LIMIT
    assert len(report.devices) == 10
    assert len(report.devices[0].steps) <= 10
    assert len(report.devices[0].driver) <= TEXT_LIMIT
    assert COUNT_LIMIT >= 128  # functions of the largest machine
    assert len(builder._steps) == 10  # devices that never come take no memory either


def test_what_commands_print_is_bounded_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_report, "OUTPUTS_LIMIT", 10)
    said = {"kind": "run", "command": "yes", "status": 0, "seconds": 1.0, "output": "123456"}
    report = taken(said, said, said).build()
    assert [run.output for run in report.run] == ["123456", "1234", ""]
    assert set(report.faults) == {"the commands printed more than is kept"}


def test_lines_are_put_together_from_what_arrives() -> None:
    reader = Reader()
    data = b'{"kind": "end"}\n\n{"kind": "fault", "text": "x"}\n{"unfinished'
    found = [each for byte in data for each in reader.feed(bytes([byte]))]
    assert [each.text("kind") for each in found if isinstance(each, Message)] == ["end", "fault"]


@pytest.mark.parametrize(
    "line", [b"\xff\xfe", b"[1]", b'"text"', b"NaN", b'{"a": Infinity}', b"[" * 100_000, b"9" * 10_000]
)
def test_a_line_that_is_no_object_is_told(line: bytes) -> None:
    assert isinstance(messages.parse(line), GuestError)


def test_a_line_without_end_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LINE_LIMIT", 1000)
    with pytest.raises(GuestError, match="does not end"):
        list(Reader().feed(b"x" * 1001))


def test_a_report_without_end_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "TOTAL_LIMIT", 1000)
    reader = Reader()
    list(reader.feed(b"{}\n" * 300))
    with pytest.raises(GuestError, match="does not end"):
        list(reader.feed(b"{}\n" * 100))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
KINDS = sorted(GuestReportBuilder()._handlers)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS),
            st.sampled_from([DEVICE, STEP, {}]),
            st.dictionaries(
                st.sampled_from(
                    [
                        "address",
                        "nodes",
                        "ok",
                        "seconds",
                        "document",
                        "lines",
                        "units",
                        "status",
                        "finish",
                        "userspace",
                    ]
                ),
                json_values,
            ),
        ),
        max_size=8,
    )
)
def test_no_message_breaks_the_report(said: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
    builder = taken(*({**usual, **changed, "kind": kind} for kind, usual, changed in said))
    builder.build()


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    for each in Reader().feed(data + b"\n"):
        assert isinstance(each, (Message, GuestError))


def test_bindings_beside_one_another_cost_the_boot_their_time_once() -> None:
    spans = ((10.0, 12.0), (11.0, 13.0), (20.0, 21.0), (90.0, 99.0))
    bindings = [BootTask("binding", "active", "success", "", *span) for span in spans]
    unit = BootTask("x.service", "active", "success", "", 15.0, 40.0, cpu=0.5)
    assert guest_report.cost_of([unit, *bindings], end=80.0) == 4.5
    assert guest_report.cost_of([], end=80.0) is None


def test_the_phases_are_those_of_systemd_analyze() -> None:
    at = {"firmware": 9.0, "loader": 4.0, "initrd": 2.0, "userspace": 5.0, "finish": 30.0}
    times = taken({"kind": "times", **at}).build().times
    assert (times.firmware, times.loader, times.kernel, times.initrd, times.userspace) == (
        5.0,
        4.0,
        2.0,
        3.0,
        25.0,
    )
    assert times.total == 39.0


def test_without_an_initrd_the_kernel_lasts_until_userspace() -> None:
    at = {"firmware": None, "loader": None, "initrd": None, "userspace": 5.0, "finish": None}
    times = taken({"kind": "times", **at}).build().times
    assert (times.kernel, times.initrd, times.userspace) == (5.0, None, None)
