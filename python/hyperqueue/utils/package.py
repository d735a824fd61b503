"""Optional packages."""

from __future__ import annotations


class MissingPackageException(BaseException):
    """A package that is needed is not installed. Not an `Exception`, for compatibility."""

    def __init__(self, package: str) -> None:
        super().__init__(f"Unable to import `{package}`. You have to install the `{package}` package.")
        self.package = package
