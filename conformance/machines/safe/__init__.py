"""The machines of level safe: a backend may decide otherwise than the specification, and must be right all the same.

Which page is taken, which is evicted, and when, is policy: a radix tree decides otherwise than a queue. So the
specification follows: it takes the pages that the backend takes, and goes on from the prefix that this finds, so that
pages have the same ids on both sides. In all else the two must agree: who holds which page, what each page holds (the
ghost content of R2), how many are free, and what must be refused.

A backend may have fewer pages cached, never others, and a hit must be the request's own prefix and the longest that is
resident. It may take whichever of several pages of equal content when it admits a request; in the list of a live one no
other page takes a page's place (MAN-2).
"""
