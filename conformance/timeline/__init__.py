"""The timeline: an operation log drawn as one page of HTML, which needs nothing else, or as a trace for Perfetto."""

from .document import Document, document
from .page import page
from .trace import trace

__all__ = ["Document", "document", "page", "trace"]
