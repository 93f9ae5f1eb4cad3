"""The timeline: an operation log drawn as one page of HTML, which needs nothing else and loads nothing."""

from .document import Document, document
from .page import page

__all__ = ["Document", "document", "page"]
