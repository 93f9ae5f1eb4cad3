"""The timeline: an operation log drawn as one page of HTML, which needs nothing else, or as a trace for Perfetto."""

from .document import Document, document, page
from .trace import trace

__all__ = ["Document", "document", "page", "trace"]
