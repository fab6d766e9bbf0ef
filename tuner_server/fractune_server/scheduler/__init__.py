"""Pure decisions: how many trials, which operator next, who is measured again. No I/O."""
