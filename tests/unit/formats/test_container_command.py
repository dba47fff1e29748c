from __future__ import annotations

import pytest

from tpu_image.formats.container_command import parse

IMAGES = {
    "docker run IMAGE --gid=": ("run", "IMAGE"),
    "/usr/bin/docker --debug -H unix:///x container run --rm IMAGE": ("run", "IMAGE"),
    "docker run -d --name n --net host -v /a:/b IMAGE": ("run", "IMAGE"),
    "docker run -dit -v/a:/b -e=A=b --privileged=false IMAGE": ("run", "IMAGE"),
    "docker run --init --ulimit memlock=-1 --rm -- IMAGE": ("run", "IMAGE"),
    "podman run --replace --name n IMAGE": ("run", "IMAGE"),
    "docker pull -q IMAGE": ("pull", "IMAGE"),
    "docker image pull IMAGE": ("pull", "IMAGE"),
    "docker rm -f NAME": ("rm", ""),
    "docker start -a NAME": ("start", ""),
    "docker": ("", ""),
}


@pytest.mark.parametrize("text", IMAGES)
def test_the_image_is_found_behind_the_options(text: str) -> None:
    command = parse(text.split())
    assert command is not None
    assert (command.action, command.image) == IMAGES[text]


def test_what_is_no_engine_is_no_container_command() -> None:
    assert parse([]) is None
    assert parse(["/usr/bin/dockerd", "run", "IMAGE"]) is None


def test_options_are_read_by_their_long_names() -> None:
    words = "docker run -it --net=host --privileged -v /a:/b --volume /c:/d IMAGE sh -c x"
    command = parse(words.split())
    assert command is not None
    assert command.flag("interactive")
    assert command.flag("tty")
    assert command.flag("privileged")
    assert command.last("network") == "host"
    assert command.options["volume"] == ("/a:/b", "/c:/d")
    assert command.operands == ("IMAGE", "sh", "-c", "x")


def test_a_flag_may_be_taken_back() -> None:
    command = parse(["docker", "run", "--privileged", "--privileged=false", "IMAGE"])
    assert command is not None
    assert not command.flag("privileged")
    assert not command.flag("rm")


def test_the_archive_of_load_is_found() -> None:
    for words in (["docker", "load", "-i", "/a.tar"], ["docker", "image", "load", "--input=/a.tar"]):
        command = parse(words)
        assert command is not None
        assert (command.action, command.last("input")) == ("load", "/a.tar")


def test_attach_takes_a_value_for_run_alone() -> None:
    started, run = parse(["docker", "start", "-a", "NAME"]), parse(["docker", "run", "-a", "stdout", "IMAGE"])
    assert started is not None
    assert run is not None
    assert (started.operands, run.operands) == (("NAME",), ("IMAGE",))


def test_an_option_without_its_value_is_empty() -> None:
    command = parse(["docker", "run", "--name"])
    assert command is not None
    assert (command.image, command.last("name")) == ("", "")
