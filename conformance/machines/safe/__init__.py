"""The machines of level safe: a backend is driven alone, and judged by what any correct one must hold.

Which page is taken, which is evicted, and when, is policy: a radix tree decides otherwise than a queue. What a machine
of this folder asks is told from the calls and from what the backend shows, never from the specification's choices: who
holds which page, what each page holds (the ghost content of R2), how many are free, and whether a hit is the request's
own prefix and the longest that is resident. A backend may take whichever of several pages of equal content when it
admits a request; in the list of a live one no other page takes a page's place (MAN-2).

The steps of the managers are those of level exact. What they are made of (looking up, allocating, publishing, freeing,
forgetting) is done on the backend alone, and judged by the model here.
"""
