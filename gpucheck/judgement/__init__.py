"""What a probe makes of what it has seen: facts and answers in, findings and evidence out. Pure, a module a noun."""
