"""What a probe makes of what it has seen: facts and answers in, findings and evidence out; a module a noun.

Pure, but for :mod:`gpucheck.judgement.gpu_turns`.
"""
