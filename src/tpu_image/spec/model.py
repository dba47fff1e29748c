"""The format of the specification file, as models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema

from tpu_image import catalogue
from tpu_image.catalogue import choices, hardware
from tpu_image.catalogue.requirement import Platform, Profile
from tpu_image.customise.customisation import (
    Customisation,
    GcloudArchive,
    Placement,
    PythonEnvironment,
    Script,
)
from tpu_image.spec import words
from tpu_image.spec.words import UnfitError

SCHEMA = "tpu-image/spec/1"

Fetch = Callable[[str, str], Path]
"""Gives the local file of a URL whose content has this SHA-256."""

TEXT = {"type": "string"}


def _written(pattern: str) -> WithJsonSchema:
    return WithJsonSchema(TEXT | {"pattern": f"^{pattern}$"})


_GENERATION_NAMES = [generation.name for generation in hardware.GENERATIONS]
_Generations = Annotated[
    list[Annotated[str, AfterValidator(words.generation)]],
    BeforeValidator(words.split),
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"enum": _GENERATION_NAMES}, "minItems": 1},
                {"type": "string", "description": "Names separated by commas."},
            ]
        }
    ),
]
_PlatformName = Literal["compute-engine", "gke"]
_RequirementId = Annotated[str, AfterValidator(words.requirement)]
_Reason = Annotated[str, AfterValidator(choices.waiver_reason)]
_ImagePath = Annotated[str, AfterValidator(words.image_path), _written("/.+")]
_OwnPath = Annotated[Path, BeforeValidator(words.existing), WithJsonSchema(TEXT)]
_SmallFile = Annotated[
    Path, BeforeValidator(words.existing_file), AfterValidator(words.small_file), WithJsonSchema(TEXT)
]
_NewFile = Annotated[Path, BeforeValidator(words.own_path), WithJsonSchema(TEXT)]
_OwnFolder = Annotated[Path, BeforeValidator(words.existing_folder), WithJsonSchema(TEXT)]
_Owner = Annotated[
    str, BeforeValidator(words.owner), WithJsonSchema({"anyOf": [TEXT, {"type": "integer", "minimum": 0}]})
]
_Sha256 = Annotated[str, AfterValidator(words.sha256), _written(words.SHA256.pattern)]
_Package = Annotated[str, AfterValidator(words.package), _written(words.PACKAGE.pattern)]
_PackageVersion = Annotated[
    str, AfterValidator(words.package_version), _written(words.PACKAGE_VERSION.pattern)
]
_PythonPackage = Annotated[str, AfterValidator(words.python_package)]
_Image = Annotated[str, AfterValidator(words.image_to_begin_with)]
_FileOrUrl = Annotated[str, AfterValidator(words.file_or_url)]
_AgentSource = Annotated[str, AfterValidator(words.agent_source)]
_Size = Annotated[int, BeforeValidator(words.size), _written(words.SIZE.pattern)]
_Duration = Annotated[int, BeforeValidator(words.duration), _written(words.DURATION.pattern)]
_Mode = Annotated[int, BeforeValidator(words.mode), _written(words.MODE.pattern)]


class Section(BaseModel):
    """A part of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ShortSection(Section):
    """A part that may be written as one text, which stands for the key ``short``."""

    short: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return {cls.short: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Say that a text will do too."""
        schema = handler.resolve_ref_schema(handler(core))
        return {"anyOf": [TEXT, dict(schema)]}


def _needs_one(*keys: str) -> dict[str, Any]:
    """Say in a JSON schema that one of these keys must be there, and no other of them."""
    return {"oneOf": [{"required": [key]} for key in keys]}


def _require_one(section: Section, *keys: str) -> None:
    given = [key for key in keys if key in section.model_fields_set]
    if len(given) != 1:
        listed = f"{', '.join(keys[:-1])} and {keys[-1]}"
        have = f"has {' and '.join(given)}" if given else f"has none of {listed}"
        raise UnfitError(f"{have}; give one of {listed}")


class TelemetrySection(Section):
    """The telemetry collector, which is optional; true alone has it with its own defaults."""

    enabled: bool = Field(default=True, description="Whether the collector is required.")
    config: _SmallFile | None = Field(default=None, description="Its own configuration, a YAML file.")

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        if not isinstance(value, (bool, dict, cls)):
            raise UnfitError("is neither true, false nor a mapping; give true or false")
        return {"enabled": value} if isinstance(value, bool) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Say that true or false will do too."""
        return {"anyOf": [{"type": "boolean"}, dict(handler.resolve_ref_schema(handler(core)))]}


class ProfileSection(Section):
    """What the image is made for; the options of the command line of the same names go before it."""

    platform: _PlatformName = Field(default="compute-engine", description="Who starts the machines.")
    tpu: _Generations = Field(default=[], description="TPU generations that it is to work on.")
    generations: _Generations = Field(default=[], description="Another name of tpu.")
    telemetry: TelemetrySection = Field(
        default=TelemetrySection(enabled=False), description="The telemetry collector."
    )
    device_group: Annotated[str, AfterValidator(words.device_group)] = Field(
        default="", description="Group that owns the device nodes (mode 0660); empty for everyone (0666)."
    )
    agent: Literal["install", "elsewhere"] = Field(
        default="install", description="Whether the vBar agent is to be in the image or comes from elsewhere."
    )

    @model_validator(mode="after")
    def _named_once(self) -> ProfileSection:
        if self.tpu and self.generations:
            raise ValueError("tpu and generations are two names of one thing; keep one")
        return self


class AgentsSection(Section):
    """Where the agents come from that the image is to have, and what runs them."""

    vbar: _AgentSource = Field(
        default="", description="Of the vBar agent: REGISTRY/PATH:TAG, an archive, an OCI layout or a folder."
    )
    telemetry: _AgentSource = Field(default="", description="Of the telemetry collector, in the same words.")
    runtime: Literal["systemd", "docker"] | None = Field(
        default=None, description="What runs them; Docker by default where the base starts it."
    )
    authfile: _SmallFile | None = Field(
        default=None, description="Credentials of registries, as Docker keeps them."
    )


class BaseSection(ShortSection):
    """The image to begin with: a file, a URL, or one to be made, such as debian:bookworm."""

    short = "image"

    image: _Image = Field(description="A file, a URL, or a reference such as debian:bookworm.")
    sha256: _Sha256 = Field(default="", description="Of the file; it is checked before anything else.")

    @property
    def kind(self) -> Literal["file", "url", "reference"]:
        """What ``image`` names; a file by its path from anywhere."""
        if words.is_url(self.image):
            return "url"
        return "reference" if words.REFERENCE.fullmatch(self.image) else "file"

    @model_validator(mode="after")
    def _has_a_digest(self) -> BaseSection:
        if self.kind == "reference" and self.sha256:
            raise UnfitError(f"is {self.image}, which is made anew and has no SHA-256; leave sha256 out")
        return self


class OutputSection(ShortSection):
    """The image to write."""

    short = "path"

    path: _NewFile = Field(description="The file to write.")
    format: Literal["gce", "raw", "qcow2", "qcow2-zstd"] | None = Field(
        default=None,
        description="gce: the .tar.gz that Compute Engine imports. By default as the name of the file says.",
    )


class FileSection(Section):
    """A file or directory to have in the image: what is there already is replaced."""

    model_config = ConfigDict(json_schema_extra=_needs_one("source", "content", "directory"))

    path: _ImagePath = Field(description="Where, from the image's root.")
    source: _OwnPath | None = Field(default=None, description="A file or folder to copy.")
    content: str = Field(default="", description="What the file is to hold.")
    directory: Literal[True] = Field(
        default=True, description="A directory, empty unless it is there already."
    )
    mode: _Mode | None = Field(default=None, description='Octal digits in quotes, such as "0644".')
    owner: _Owner = Field(default="", description="User, by a name of the image's or by number.")
    group: _Owner = Field(default="", description="Group, by a name of the image's or by number.")

    @model_validator(mode="after")
    def _has_one_content(self) -> FileSection:
        _require_one(self, "source", "content", "directory")
        if self.mode is not None and self.source is not None and self.source.is_dir():
            raise UnfitError(
                "has a mode for a whole folder; leave it out, each file keeps whether it is executable"
            )
        return self


class RunSection(ShortSection):
    """A program to run in the image as root, after all else was installed."""

    model_config = ConfigDict(json_schema_extra=_needs_one("script", "file"))
    short = "script"

    script: str = Field(default="", description="Its text; run by sh -e unless it begins with #!.")
    file: _SmallFile | None = Field(default=None, description="The file that holds it.")
    name: str = Field(default="", description="What messages and the manifest call it.")

    @model_validator(mode="after")
    def _has_one_text(self, info: ValidationInfo) -> RunSection:
        _require_one(self, "script", "file")
        if words.files_are_wanted(info) and not self.content.strip():
            raise UnfitError("is an empty script; write what it is to do, or leave it out")
        return self

    @property
    def content(self) -> bytes:
        """The program's text."""
        return self.file.read_bytes() if self.file else self.script.encode()


class PipSection(Section):
    """A Python environment with packages in it."""

    venv: _ImagePath = Field(description="Where, such as /opt/jax.")
    packages: list[_PythonPackage] = Field(default=[], description="As pip install takes them.")
    requirements: _SmallFile | None = Field(default=None, description="A requirements file.")
    wheels: _OwnFolder | None = Field(
        default=None, description="A folder that alone gives packages: no network."
    )
    python: _ImagePath = Field(default="/usr/bin/python3", description="The interpreter in the image.")


class GcloudSection(ShortSection):
    """Google's archive of its Cloud CLI, unpacked to /usr/lib/google-cloud-sdk."""

    short = "archive"

    archive: _FileOrUrl = Field(description="A file or URL.")
    sha256: _Sha256 = Field(default="", description="Of the archive; needed for a URL.")

    @property
    def is_url(self) -> bool:
        """Whether the archive has to be downloaded."""
        return words.is_url(self.archive)

    @model_validator(mode="after")
    def _has_a_digest(self) -> GcloudSection:
        if self.is_url and not self.sha256:
            raise UnfitError("is a URL without sha256; give that of the archive you mean")
        return self


class Specification(Section):
    """The whole file. Every part may be left out."""

    base: BaseSection | None = Field(default=None, description="The image to begin with.")
    size: _Size | None = Field(default=None, description="Of the disk, at least: such as 20G.")
    output: OutputSection | None = Field(default=None, description="The image to write.")
    profile: ProfileSection = Field(default=ProfileSection(), description="What the image is made for.")
    agents: AgentsSection = Field(default=AgentsSection(), description="Where the agents come from.")
    waive: dict[_RequirementId, _Reason] = Field(
        default_factory=dict, description="Requirements that need not hold, each with the reason."
    )
    files: list[FileSection] = Field(default=[], description="Files and directories to have in the image.")
    packages: list[_PackageVersion] = Field(default=[], description="Debian packages to install.")
    remove: list[_Package] = Field(default=[], description="Debian packages to remove, with their settings.")
    sources: _SmallFile | None = Field(
        default=None,
        description="A sources.list(5) file to install from, in place of the image's own sources.",
    )
    kernel: _PackageVersion = Field(
        default="", description="Package of the kernel that is to boot, such as linux-image-cloud-amd64."
    )
    pip: list[PipSection] = Field(default=[], description="Python environments.")
    run: list[RunSection] = Field(default=[], description="Programs to run in the image, in order.")
    gcloud: GcloudSection | None = Field(default=None, description="The Cloud CLI to unpack.")
    time_limit: _Duration | None = Field(
        default=None, description="For all that runs in the image, such as 90m; two hours by default."
    )

    def to_profile(self) -> Profile:
        """Give the profile that the file describes."""
        section = self.profile
        names = section.tpu or section.generations or list(hardware.DOCUMENTED)
        return Profile(
            platform=Platform(section.platform),
            generations=choices.generations(",".join(names)),
            telemetry=section.telemetry.enabled,
            device_group=section.device_group,
            agent_elsewhere=section.agent == "elsewhere",
            waivers=dict(self.waive),
        )

    def to_customisation(self, fetch: Fetch) -> Customisation:
        """Give what the file wants beyond the catalogue; ``fetch`` gets a Cloud CLI that is a URL.

        Raises:
            OSError: a file has gone since the specification was read.
        """
        return Customisation(
            files=tuple(_placement(section) for section in self.files),
            packages=tuple(self.packages),
            remove=tuple(self.remove),
            kernel=self.kernel,
            environments=tuple(_environment(section) for section in self.pip),
            scripts=tuple(_script(number, section) for number, section in enumerate(self.run, 1)),
            gcloud=_gcloud(self.gcloud, fetch) if self.gcloud else None,
            sources=self.sources.read_bytes() if self.sources else b"",
            time_limit=self.time_limit or 0,
        )


def _placement(section: FileSection) -> Placement:
    content = section.content.encode() if "content" in section.model_fields_set else None
    return Placement(section.path, section.source, content, section.mode, section.owner, section.group)


def _environment(section: PipSection) -> PythonEnvironment:
    requirements = section.requirements.read_bytes() if section.requirements else b""
    return PythonEnvironment(
        section.venv, tuple(section.packages), requirements, section.wheels, section.python
    )


def _script(number: int, section: RunSection) -> Script:
    return Script(
        section.name or (section.file.name if section.file else f"script {number}"), section.content
    )


def _gcloud(section: GcloudSection, fetch: Fetch) -> GcloudArchive:
    if section.is_url:
        return GcloudArchive(fetch(section.archive, section.sha256), section.sha256)
    return GcloudArchive(Path(section.archive), section.sha256)


def json_schema() -> dict[str, Any]:
    """Give the JSON schema (draft 2020-12) of the file."""
    schema = Specification.model_json_schema()
    ids = [requirement.id for requirement in catalogue.requirements()]
    schema["properties"]["waive"]["propertyNames"] = {"enum": ids}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
    }
    return {**head, **schema, "title": "Specification of a TPU image", "type": "object"}
