"""The machines of level safe: a backend may decide otherwise than the specification, and must be right all the same.

Which page is taken, which is evicted, and when, is policy: a radix tree decides otherwise than a queue. What a machine
of this folder asks is told from the calls and from what the backend shows, never from the specification's choices: who
holds which page, what each page holds (the ghost content of R2), how many are free, and whether a hit is the request's
own prefix and the longest that is resident. A backend may take whichever of several pages of equal content when it
admits a request; in the list of a live one no other page takes a page's place (MAN-2).

Of a pool, and of a manager in the long lives of `soak`, the specification follows what the backend decides, and the two
are compared. In small worlds a manager's steps are those of level exact, and make the same calls, but on the backend
alone, and the model here judges them.
"""
