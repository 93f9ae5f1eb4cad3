"""The oracle over whole engines: the same question must get the same answer, however it is asked (ENG-3 to ENG-15).

Nothing is known of an engine but what it answers. So an answer is held against other answers of the same engine: asked
alone and beside others, cold and warm, before and after an eviction. `judging.judge` does all of it; `relations` holds
the table of what is asked.
"""
