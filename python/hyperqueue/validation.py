"""Mistakes in the description of a job."""

from __future__ import annotations


class ValidationException(BaseException):
    """A part of a job makes no sense. Not an `Exception`, for compatibility."""
