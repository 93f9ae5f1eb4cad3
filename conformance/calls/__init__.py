"""The call is a datum: what is said of a method of the interface stands in one row, and everything else reads it there.

**What there is.** A `Call` is a method, what it is called on, and its arguments as plain values. What no text can hold
is named by how it came about: a page is the place in the result of the call that gave it (`Ref(3, (0,))`: ``r3[0]``);
a request is what it asks for (`Prompt`), and by then its id (``Ref("a")``) with what the engine says of it in this call
(`Saying`); a key is the page of a request whose key it is (`Key`); a list is its entries and the type in which it is
handed over (`Spelled`). So a call can be printed, written into a file, made again on
another side, and made simpler. A `Kind` is a sort of value: it draws what is allowed now (``good``), the same with one
thing wrong (``fault``), says what can be compared of a result (``plain``), how a log writes it (``log``), and what is
left of an argument when calls before it were left out (``fits``). A `Method` is a row: the kinds of the arguments and
of the result, the clause of a wrong result, the clauses of wrong fields of the state, the clauses by which it refuses,
what a backend may lack (``optional``, ``capability``), how often it is drawn (``weight``) and spoilt (``spoils``). A
`Table` has the rows of one interface; `tests/conformance/test_calls.py` holds all of them against the names and the
signatures of the specification: a new public method without a row fails there.

**Who does what.**

* *Draws*: a machine whose base is `machines.calling.Calling`. Each row with a weight is a step. What needs several
  calls is a generator: it yields calls and is sent what came of each (`Both`). The scenes of managers are made of other
  scenes; they make their calls by `make_call`. Decisions come from a `Source`, which makes all of them of integers;
  `machines.draws.Drawing` is Hypothesis as a source.
* *Knows*: the machine, by the specification's objects. Kinds ask it (``known``): which pages are held, cached or free,
  what a page is called (``known.ref``), whether other iterables than lists are taken (``known.takes_iterables``).
* *Performs*: `perform`, the same on both sides. `resolve` makes of a value what one side is given.
* *Compares*: `judging.difference`, for whoever makes calls on two sides: machines, small worlds, `kvproof try` and
  replays of logs. It compares two refusals, two results, and two values of a field of the state.
* *Charges*: `machines.base.Machine.call`, which makes the call on both sides, has errors, results (``plain``) and the
  whole observable state compared, and charges what differs to the labels of the row. A label may depend on
  what is known before the call and on its arguments; then the row has a function, and ``clause`` is the label for
  whoever does not know that, such as a log. A wrong state after a refusal is charged to R1. Labels beside the fields'
  own, ``clause`` and those of ``charges`` stand in ``refuses``, so that a machine declares what it compares by.
* *Reads the state*: `readings`, for machines, logs and emitted tests alike, with the label of each field (`SHOWS`).
* *Writes into files*: `documents`, as JSON, and reads again; ``kvproof try`` takes calls so, or as Python.
* *Prints*: `written`; a machine shows pages by their ids. Salts stand in every text by their fingerprints (SEC-2).
* *Makes shorter*: `search.shortening`, on the calls themselves. A call that is left out takes its mentions with it:
  each `Ref` says what it names otherwise (a page by its id), `fitting` drops what is not allowed any more, and
  a call that the specification accepted when it was drawn and refuses now is left out. The machine draws nothing again.
* *Enumerates*: a small world (`machines.exhaustive.world`) lists calls instead of drawing them; which states are alike
  but for names is the world's, everything about a call is the row's.
* *Counts*: `Session.note_drawn`, what was drawn of each row; `coverage` says what never was.
* *Logs*: `log.format` reads the same rows; ``logged`` says whether a log records a method.

**Capabilities.** A row with a ``capability`` is drawn by the machines of that capability only. An ``optional`` row is
drawn where the backend has the method. A kind asks ``known`` where a value needs one (cache groups, iterables).

**Levels.** The rows serve both levels. At level exact the judge is the specification beside the backend. At level safe
it follows the choices of the backend (`following`): it takes the pages that a pool or a manager took, and goes on from
what that found, so that the two can be compared. Of the calls with a fault only those are made that managers of every
design refuse. A result that depends on what was evicted says so in its row (``by_eviction``).

**To convert a machine**: write the kinds of its arguments with ``good`` and ``fault`` into its table; make the machine
a `Calling`; what several calls make becomes a generator; delete its file of faults, its texts and its closures; let its
small world list calls. Compare strength, time and length of counterexamples over seeds 0 to 7 before and after.
"""
