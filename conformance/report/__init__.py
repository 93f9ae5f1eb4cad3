"""What a run found, told: verdicts by clause, for terminals, as JSON and JUnit, with secrets taken out."""
