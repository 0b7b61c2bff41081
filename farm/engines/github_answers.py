"""GitHub's answers as the farm reads them: checked, bounded, and made safe to print."""

from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from farm.base.errors import InfrastructureError
from farm.base.text import plain

M = TypeVar("M", bound=BaseModel)


def read(model: type[M], body: bytes) -> M:
    """An answer as a model; InfrastructureError where it is none."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise unexpected_answer(error) from error


def unexpected_answer(error: Exception) -> InfrastructureError:
    """The error for an answer that GitHub does not document."""
    lines = plain(str(error), 300)
    return InfrastructureError(f"GitHub's answer is not what its API documents: {lines}")


def reason(error: Exception) -> str:
    """An error in one line."""
    return plain(str(error) or type(error).__name__)


def message(answer: httpx.Response) -> str:
    """GitHub's message of a refusal."""
    try:
        message = answer.json()["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = answer.reason_phrase
    return plain(str(message), 300)


def parsed_date(text: str | None) -> datetime | None:
    """The time of a Date header; None where there is none."""
    try:
        return parsedate_to_datetime(text) if text else None
    except ValueError:
        return None
