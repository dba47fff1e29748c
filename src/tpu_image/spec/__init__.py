"""The specification file, ``tpu-image.yaml``: what an image is to be, kept beside the rest of a project.

:mod:`model` is the file's format: a field added there is read, checked, and in the published JSON schema.
:mod:`reading` collects every problem of a file, each with its line and column.
"""

from tpu_image.spec.model import SCHEMA, Specification, json_schema
from tpu_image.spec.reading import SIZE_LIMIT, SpecificationError, load, parse

__all__ = ["SCHEMA", "SIZE_LIMIT", "Specification", "SpecificationError", "json_schema", "load", "parse"]
