"""The clauses of the contract: the one place where each is written.

A clause has a label and a sentence. Elsewhere it appears by its label alone: in the docstring of the
code of this package that implements it, in the property that checks it, in the message of the error
that a refused call raises (``... [POOL-5]``) and in the verdict that a failing run prints.
"""

import re
from dataclasses import dataclass

__all__ = ["CLASSES", "CLAUSES", "SOUND", "Clause", "clause_of_message"]

CLASSES = {
    "content": "what is read is right: hits, pages, tables, attention, answers",
    "ownership": "who holds which page, and that nobody who does loses it or waits for ever",
    "accounting": "the numbers add up: usage, counts, events, sizes; what was served is found again",
    "order": "which page is evicted first, and which is handed out next",
    "refusals": "bad input is refused, before anything changes",
    "interface": "how a call behaves where another choice would do as well: copies, programs, texts",
}
"""What clauses are about, by the class's name; the most important class comes first."""

SOUND = ("content", "ownership", "accounting")
"""The classes of what a caller who makes no mistakes can notice."""


@dataclass(frozen=True)
class Clause:
    """One clause of the contract.

    Attributes:
        label: what the clause is called everywhere, such as ``POOL-3``.
        sentence: what it says.
    """

    label: str
    sentence: str

    @property
    def kind(self) -> str:
        """What the clause is mainly about, one of `CLASSES`."""
        return _KINDS.get(self.label) or _KINDS_OF_FAMILIES[self.label.rstrip("0123456789").rstrip("-")]


_SENTENCES = {
    # -- The two rules above all others -----------------------------------------------------------
    "R1": "Bad input (wrong type, negative or out-of-range value, a page not owned, a full row, a reused id) "
    "is refused before anything changes, with a message that names the argument and its value: TypeError for a "
    "wrong type, IndexError for a page, row or group that does not exist, ValueError for all else. A bool is no "
    "int; numpy integers are ints; a list of ints may come as any iterable, an array of any integer type and strides "
    "among them. Where an exception from outside (a signal, MemoryError) breaks a call off, its change may be half "
    "made: who catches it goes on only if check() holds, else from the last snapshot or with a new object.",
    "R2": "What a page is said to hold is what it holds: a hit returns only pages whose content is the request's "
    "own prefix, whatever hash function is used, and a page that one request may still write is held by no other.",
    # -- Page pool --------------------------------------------------------------------------------
    "POOL-1": "Page 0 is the null page: a placeholder, never handed out, freed, evicted or cached; reference-count "
    "operations on it do nothing. A pool has at least 2 pages, and fewer than 2^31: page ids are int32.",
    "POOL-2": "Every other page is either in the free queue exactly once with a count of 0, or out of it with a "
    "count of 1 or more; a setter on a page view that would break this is refused.",
    "POOL-3": "The free queue is the eviction order: by id at first; get_new_pages(n) takes the n at the front and "
    "evicts their hashes; freed pages go to the back in the order given (of their last mention).",
    "POOL-4": "get_new_pages of more than the free count raises and changes nothing; 0 gives an empty list.",
    "POOL-5": "free_pages lowers each count once per mention; a mention beyond the count held refuses the whole "
    "call. A page at 0 keeps its hash and stays hittable until it is taken again.",
    "POOL-6": "touch raises the count and takes a page at 0 out of the queue; touching a free page that has no "
    "hash is refused, as it holds nothing.",
    "POOL-7": "The cached map goes from (page hash, group id) to pages in the order they were cached; a look-up "
    "gives the first; duplicates stay until evicted; a look-up over several groups misses if any group misses.",
    "POOL-8": "A page has at most one hash while it is resident.",
    "POOL-9": "reset_prefix_cache forgets every hash and returns True only while no page but the null page is in use "
    "(by a request, a pin or a copy to or from the host) and no request is swapped out; else it returns False and "
    "nothing changes.",
    "POOL-10": "get_usage() is pages in use / (num_pages - 1): 0.0 when idle, 1.0 when full.",
    "POOL-11": "evict_pages(ids) drops hashes only; it never frees and never moves a page in the queue. Pinned pages "
    "are refused.",
    "POOL-12": "With data parallelism each shard has its own pool, null page and local ids; a request lives on one "
    "shard, which the placement names at its look-up and admission. It is told for each shard how many tokens of the "
    "request are not cached there, how many wait there (known tokens of live requests that were not computed at the "
    "last call for each), and the free pages. By cost, the default, the sum of the first two is least; by prefix the "
    "first is least, then most pages are free; of equals the lowest number is taken. It swaps on that shard, whose "
    "host pages are its own too, and comes back to it.",
    "POOL-13": "With unhashed_first=True freed pages that carry no hash go to the front of the queue, in the order "
    "given; off by default.",
    # -- Pins and priorities ----------------------------------------------------------------------
    "PIN-1": "A pin counts as a reference (the page leaves the queue and is in use for POOL-9 and POOL-10) but never "
    "as a request for MAN-10; a pinned page keeps its hash until it is unpinned, unless the request that "
    "promised its content withdraws it (MAN-4). The distinct pages pinned are bounded by a maximum given at "
    "construction, per salt as well.",
    "PIN-2": "Priority orders eviction ahead of recency: pages of a low priority are taken first, 0 unless set "
    "otherwise, and within one priority the order is POOL-3; a free page whose priority changes goes to the back "
    "of its new one. A priority ends at its expiry time, if it has one, when the page is taken, and when it is "
    "freed without a hash. Time comes in as an argument, never from a clock inside.",
    "EVICT-1": "eviction=lru, the default, is POOL-3's order. By reuse pages have levels: 0 if they were never hit, 1 "
    "after one hit or if their content was evicted lately, 2 after two or three, 3 after more. A free page is taken "
    "when one of the level below would be that was freed 4 turnovers of the pool later; free pages without a hash go "
    "first. A policy learns of contents when requests let go of them, of all groups together, but for what RET-3 puts "
    "in front: a page that is let go again with the same content was hit. adaptive follows one of several such rules: "
    "the one that hits most in shadow pools, which hold a sample of what was let go, or LRU while the pool has lost "
    "hits to it. A page is never taken before the pages that need it for their hits, where requests free their pages "
    "as MAN-5 says. Pins and priorities stand above it (PIN-1, PIN-2). No clock and no chance decides: the same calls "
    "with the same seed evict the same pages.",
    # -- Page hashes ------------------------------------------------------------------------------
    "HASH-1": "A full page's key is a SHA-256 chain over (parent's digest, extra keys, token ids as little-endian "
    "int32) in one documented encoding: the same in every process for the same seed, different for another seed. "
    "The seed belongs to the manager, 32 random bytes unless given; another hash function may be passed (bytes in, "
    "bytes out). Only None means root, and no value (0, -1) is special.",
    "HASH-2": "Extra keys (cache salt, LoRA adapter, weights version, multimodal content with its offset, prompt "
    "embeddings), each tagged with its kind, None differing from empty, enter the pages that they touch, generated "
    "pages included: two requests share a page only if tokens and extra keys agree from the first token on.",
    "HASH-3": "Only full pages have keys (and what MAN-17 adds); the chain runs over all tokens of the request, also "
    "where its page list holds null pages.",
    # -- Cache manager ----------------------------------------------------------------------------
    "MAN-1": "get_computed_pages returns the longest cached prefix of the request that every group can serve: a "
    "multiple of every group's page size (or of match_unit, MAN-17) and at most num_tokens - 1 tokens, null pages "
    "standing where a group needs none; null pages alone are no hit. It changes nothing in the pool. "
    "get_num_hit_tokens says how many tokens it would find, and changes nothing at all. Nothing is hit "
    "with caching off or when prompt log-probabilities are asked for.",
    "HIT-1": "What was served is found again: once a request was computed, its pages published (MAN-3), and it was "
    "freed with all that was promised written, the same tokens with the same extra keys hit every full page of it "
    "that full attention and MLA keep, for as long as no page was taken, no hash was dropped by a call, and nothing "
    "was withdrawn (MAN-4). Groups that need only part of a prefix may keep fewer pages, and a hit across all groups "
    "is then as long as what they kept serves.",
    "MAN-2": "allocate_slots needs room for computed + new tokens and for look-ahead cut at max_model_len; computed "
    "+ new above max_model_len is refused. It returns just the new pages, or None if the free pages don't "
    "suffice (hits at count 0 use up free pages too); then nothing has changed but for pages that a group no "
    "longer needs (MAN-8). new_computed_pages are held against the request again, by content (R2): pages that are "
    "cached and hold its own prefix are taken, also if they were evicted and cached again since the look-up; "
    "others are refused. Once a request is admitted, its page list changes by its own calls only: the pages that "
    "a call returns are put behind it, null pages take the places of those given back (MAN-8, MAN-13), and every "
    "other place keeps its page, also where another page of equal content is cached. So a page table needs only "
    "the whole list at the admission, and then what each call returns.",
    "MAN-3": "Pages are published (become hittable) up to min(computed + new, num_tokens), with delay_cache_pages "
    "not before cache_pages or the next plain allocate_slots; publishing is monotone and idempotent: a smaller "
    "count is no error and does nothing.",
    "MAN-4": "A published page is promised until the step that writes it is dispatched: free(request, "
    "num_written=n) withdraws the hashes of the pages that the request published and that do not lie wholly below "
    "n, and returns the ids of the other requests that hold them; None means that all is written.",
    "MAN-5": "free gives a request's pages back group by group, tail first; a request freed already, or never "
    "admitted, is a no-op.",
    "MAN-6": "A request id that comes back with other tokens or extra keys never hits the old one's pages; an id "
    "is live for one request object at a time. While it is live its tokens and extra keys only grow, which is for the "
    "caller to keep: a backend may refuse other tokens or extra keys than it was shown before, and need not look.",
    "MAN-7": "Groups are of full attention, sliding window, chunked local attention, MLA or state (Mamba), in any "
    "mix and number, each with a page size of its own, which governs its hashes.",
    "MAN-8": "Each allocate_slots first gives back, tail first, the pages that lie wholly before what the mask of "
    "position num_computed_tokens can read (a window's or a chunk's), null pages taking their places; the group "
    "holds the rest up to the allocated end. Computed tokens are hits and accepted tokens only: they never exceed the "
    "slots that the request was given and never fall while it is live.",
    "MAN-9": "With Eagle a hit is the longest length for which each Eagle group also holds the request's page after "
    "it; decided once. Look-ahead slots are allocated and never published.",
    "MAN-10": "get_num_common_prefix_pages counts the leading non-null pages that stand at the same index in the "
    "lists of every live running request, by identity, not by count; 0 for window, chunk and state groups; zeros "
    "if the number given is not the number running.",
    "MAN-11": "The batched step gives the same pages and the same final state as the single calls in the same order; a "
    "request that does not fit is reported and the later ones go on; new pages are appended to the requests' table "
    "rows.",
    "MAN-12": "Events (stored, removed, cleared; with group, page, key, parent's key, tokens, extra keys) come in an "
    "order from which a follower rebuilds the cached map exactly, duplicates included; a batched step emits its "
    "removals, then its stores. Off unless asked for. Counters count queries, hits, evictions and preempted "
    "tokens; of the hits also those of requests that were preempted before, and of the others those that end on a "
    "page that is kept for a junction or the interval (RET-3).",
    "MAN-13": "A state page holds the state after some number of tokens. The page being advanced is private and "
    "unhashed. Mode none: one page a request, never published, so that any mix with it hits nothing. Mode align: "
    "states at page boundaries on which a step ended are published; a hit needs the state at its length; a "
    "request goes on from a published state in a page of its own, with a copy to run before the step. A state "
    "can't be rolled back: computed tokens are what the last call promised.",
    "MAN-14": "A manager restored from a snapshot behaves alike in every later call. Equal states give equal "
    "snapshots. A snapshot is refused if it is damaged, if the manager restored from it would give another snapshot, "
    "or if it does not fit the requests.",
    "MAN-17": "With match_unit=u, a divisor of every page size, a request is admitted with hits that are multiples of "
    "u (of their page size in align groups, whose states are copied whole); None, the default, is MAN-1's rule. Where "
    "a hit ends amid a page, the first tokens of a cached page are the request's there, what comes before it and the "
    "extra keys that touch the whole page being the same; of several such pages it is the one whose tokens come first "
    "by their bytes. new_computed_pages are the full pages; the request gets a page of its own, behind them in its "
    "list, and take_page_copies returns (group, source, destination, num_tokens), to be run before the step: "
    "copy_pages with num_slots copies that number of a page's first slots, and leaves all other bits as they are. The "
    "source counts as in use until then, or until the request is freed or swapped out, and goes to the back of the "
    "queue after it. A request that is freed with all written (MAN-4) publishes the unfilled page it ends with, if "
    "the page before it is cached: under the key of its first tokens, a multiple of u, up to those computed at its "
    "last call or published at its admission. With Eagle a group must hold the u tokens after the hit. Copies run "
    "before the step: engines that look up what the same step writes publish after it (delay_cache_pages), and a "
    "request that computed more than it hit is not swapped out while its copies wait. Pins, "
    "priorities, received and swapped pages are whole pages, and counters, events and retention know the lengths as "
    "they are.",
    # -- Retention --------------------------------------------------------------------------------
    "RET-1": "With caching on, a page of a window, chunk or align group (MAN-13) is reachable if a hit could end "
    "where it is needed: at a resume point. Resume points of a request are the longest length below the end of its "
    "prompt that every group can serve, known at its admission; its junction (RET-2); the longest such length of "
    "what it has published when it is freed; and every multiple of retention_interval, which is a multiple of every "
    "page size, or 0 for no further ones (the default). With None every length is one, and all pages are kept. Full "
    "attention and MLA keep all pages.",
    "RET-2": "Where the groups that keep everything would hit further than all groups together, the length up to "
    "which they would is a junction: get_junction(request) returns it, 0 if there is none, and for a live request "
    "that of its admission. A request that computes past it keeps what a hit of that length needs.",
    "RET-3": "When its last holder lets go of such a page, by MAN-8 or by free, it goes to the back of the queue if "
    "a junction or the interval needs it, whichever request computed past that (which ends with the page's hash), if "
    "its priority is not 0, or if the end of a request that is freed needs it. If only the end of a passed prompt "
    "needs it, or the last length that could be hit so far, it is of second class: it goes behind the others of that "
    "class, before all cached pages of priority 0, and behind the pages without a hash at the front; of these, what "
    "the end needs goes to the back when the request is freed. If no resume point needs it, it loses its hash, and "
    "goes to the front in the order given, as does a page without a hash.",
    "RET-4": "The resume points of a request follow from its own calls and from what is cached at its admission, "
    "never from a clock or from chance. Where only what callers rely on is compared, more or less may be kept: what "
    "is hit is right, and as long as what is kept serves.",
    # -- Page tables ------------------------------------------------------------------------------
    "TAB-1": "A page table is int32; entries past a row's count are 0 (the null page) after every operation.",
    "TAB-2": "A page list that does not fit the row is refused, and so are negative rows; a batch, and a call over "
    "several groups, happens wholly or not at all; a batch that names a row twice applies in order, the fit checked "
    "on the sum.",
    "TAB-3": "move_row copies pages and count and leaves the source; swap_row exchanges both.",
    "TAB-4": "commit(n): device rows [0, n) equal the host's rows as they are at the call; rows from n on keep "
    "what the device had and stay dirty. What the host does afterwards never shows on the device before the next "
    "commit. A device handle is valid until the next commit; after that it raises or keeps its values.",
    "TAB-5": "A commit moves the dirty entries, not the table; programs are compiled once, at most 4 of them, "
    "whatever n.",
    "TAB-6": "clear zeroes host and device at once, counts included. get_cpu_tensor() is a read-only view.",
    "TAB-7": "Slot mappings and update slices agree with the table: token t of a row goes to page "
    "row[t // page_size], offset t % page_size; padding entries are -1.",
    "TAB-8": "cpu_version grows with every call that changes the host's rows or counts; a refused call, a commit "
    "and a read leave it.",
    # -- Cache storage ----------------------------------------------------------------------------
    "CACHE-1": "Per device, from the shard's storage shape with padding, scales and null page counted, over all "
    "layers: the pages of a pool fit into the budget, and one more would not; a budget below two pages is refused. "
    "Where page bytes differ between groups that share a pool, what each group wastes is reported. Keys and values "
    "of different head sizes are stored right.",
    "CACHE-2": "Writing keys and values and reading them back gives the same values, for every layout, every head "
    "count, head size (64 and unaligned ones too) and dtype; where the cache is quantised, within CACHE-4.",
    "CACHE-3": "An update changes exactly the named slots, whose padding becomes 0; all else stays, bit for bit. "
    "Negative slots and slots past the cache write nothing, never somewhere else. It is done in place when the cache "
    "is donated. concatenate_to_cache writes in every layout.",
    "CACHE-4": "The scale of a slot and head depends on that slot and head alone; values saturate, none becomes NaN; "
    "the error is at most scale / 2 for int8, 2^-4 relative for e4m3 and 2^-3 for e5m2 (and half the least "
    "subnormal).",
    "CACHE-5": "Sharded over a mesh, by heads, by pages or by both, results equal those on one device.",
    # -- Attention --------------------------------------------------------------------------------
    "ATT-1": "Query t of a sequence stands at position p = kv_len - q_len + t and reads keys j <= p (all j < kv_len "
    "if not causal); with a window only j > p - window, with chunks of c only j >= p // c * c, causal or not. Scale, "
    "soft cap, mask, sinks, softmax, in this order; a sink is one more logit that joins the denominator only.",
    "ATT-2": "A row with nothing to read (kv_len 0, a position below 0, everything masked) gives zeros, with sinks, "
    "too.",
    "ATT-3": "Nothing outside of the sequence's own live slots that its mask lets through can change a result: "
    "poison (NaN) anywhere else is invisible. Where a backend does not check the table, the keys of an entry that "
    "names no page are not read.",
    "ATT-4": "Query rows past the last sequence, table rows past it and table entries past a row's pages may hold "
    "anything; those query rows give zeros.",
    "ATT-5": "A fused update writes the whole batch before any read, whatever its order: a request may read in this "
    "step what another writes in it. It equals the update followed by attention.",
    "ATT-6": "Against float64 on the inputs as stored: f32 |error| <= 2^-17 max|v|; bf16 and f16 |error| <= "
    "2^-8 (|ref| + max|v|).",
    # -- Host memory ------------------------------------------------------------------------------
    "SWAP-1": "swap_out plans copies of a live request's live slots to host pages, and the request is live no more; "
    "swap_in plans its way back, what is still cached first and only the rest from the host; swap_done is the fence "
    "of either, and nothing waits. Until then the pages on both sides are held; then those of the device are given "
    "back as by free, or those of the host, and what came back is published. None changes nothing, null pages stay "
    "null, and free forgets the request at any stage, its host pages freed at the fence at the latest.",
    # -- The engine -------------------------------------------------------------------------------
    "ENG-1": "A model served through pool, manager, tables and kernels, under any schedule of arrivals, chunked "
    "prefill, preemption, resumption, prefix hits, swaps and eviction, gives logits within tolerance of plain dense "
    "attention at every position (teacher-forced), and the same tokens wherever the float64 margin exceeds twice that "
    "tolerance. Sampling is keyed by (request seed, position).",
    "ENG-2": "Every admitted request that fits alone finishes; one that never can is refused at once. A request "
    "scheduled in a step is not preempted in it.",
    "ENG-3": "An engine's answer to a request (its token ids, each with its log-probability, at temperature 0) is the "
    "same however often it is asked: what is cached of it changes nothing. Answers are the same if log-probabilities "
    "differ by no more than the engine's own noise, and tokens only where they tie within it.",
    "ENG-4": "An answer is the same whether or not the prompt's beginning, of whatever length, was computed for "
    "another request.",
    "ENG-5": "An answer is the same alone and beside any others.",
    "ENG-6": "An answer is the same however the prompt is cut into chunks, and whatever is computed between them.",
    "ENG-7": "An answer is the same where the request gives way to others and goes on later, by whatever means.",
    "ENG-8": "An answer is the same after others took the pages that the request had left, all or some of them.",
    "ENG-9": "An answer is the same before and after a reset of the prefix cache; after it a request finds nothing "
    "that was computed before.",
    "ENG-10": "Requests that come at once and share a beginning that nobody has computed yet get the answers that "
    "they get alone.",
    "ENG-11": "Each of the n answers to one request at temperature 0 is the answer that it gets with n = 1.",
    "ENG-12": "A request finds nothing that was computed under another cache salt or adapter: its answer is that of "
    "its own adapter, the same under every salt, and the cached tokens that it is said to have found are its own.",
    "ENG-13": "A conversation that is continued turn by turn gets the answers that its whole text gets, sent at once; "
    "so does a text that ends amid an answer.",
    "ENG-14": "An answer is the same whoever is taken back meanwhile, and so is that to a request that was taken back "
    "before.",
    "ENG-15": "A text gets the same answer in one piece and in prompts that grow, wherever they end: around the ends "
    "of pages, windows and chunks, and past position 32,767.",
    "SWAP-2": "Exported pages carry content, keys and order, dead slots zero; bit for bit they are what they were, and "
    "importing refuses another seed, page size, dtype, layout or model fingerprint. A file that was written with a key "
    "is read with that key only, and as it was written; with a key no other file is read.",
    # -- Security ---------------------------------------------------------------------------------
    "SEC-2": "No error message, printed object, event, counter or snapshot shows the text of a cache salt. Error "
    "messages and printed events show no token ids and no fingerprints of salts either. Snapshots and events as text "
    "hold fingerprints, from which a salt that can be guessed is found by trying: salts are to be random.",
    "SEC-3": "What is read back is a document of a named kind and version, never pickled, nothing in it naming code. "
    "One of another kind or version, with other fields, or that declares more than it contains, is refused before "
    "anything is made of it; check() holds after every load.",
    "SEC-4": "Request ids are hostile text: any text is an id, and none has a special meaning. Messages show it "
    "by repr, so that no control character leaves them; elsewhere it is escaped, or written as a literal.",
}

_KINDS_OF_FAMILIES = {
    **dict.fromkeys(("HASH", "TAB", "CACHE", "ATT", "ENG"), "content"),
    **dict.fromkeys(("R", "POOL", "PIN", "MAN", "SWAP", "FLY"), "ownership"),
    **dict.fromkeys(("HIT",), "accounting"),
    **dict.fromkeys(("EVICT", "RET"), "order"),
    **dict.fromkeys(("SEC",), "interface"),
}
"""What most clauses of a family are about."""

_KINDS = {
    **dict.fromkeys(("R2", "POOL-7", "POOL-8", "MAN-1", "MAN-3", "MAN-4", "MAN-6", "MAN-7", "MAN-9"), "content"),
    **dict.fromkeys(("MAN-13", "MAN-14", "MAN-15", "MAN-16", "MAN-17", "SWAP-2"), "content"),
    **dict.fromkeys(("ENG-2", "ENG-9", "ENG-12"), "ownership"),
    **dict.fromkeys(("POOL-9", "POOL-10", "MAN-10", "MAN-12", "TAB-8", "CACHE-1"), "accounting"),
    **dict.fromkeys(("POOL-3", "POOL-13", "PIN-2", "MAN-5"), "order"),
    **dict.fromkeys(("R1", "POOL-4", "TAB-2", "SEC-4"), "refusals"),
    **dict.fromkeys(("MAN-11", "TAB-3", "TAB-5", "TAB-6"), "interface"),
}
"""What the other clauses are about."""

CLAUSES: dict[str, Clause] = {label: Clause(label, sentence) for label, sentence in _SENTENCES.items()}

_LABEL_AT_END = re.compile(r"\[([A-Z]+-?\d+)\]$")


def clause_of_message(message: str) -> str:
    """The label of the clause by which a call was refused, read off the error's message.

    Args:
        message: the text of an error that this package raised.

    Returns:
        The label at its end, or ``R1`` where it has none.
    """
    found = _LABEL_AT_END.search(message)
    return found[1] if found else "R1"
