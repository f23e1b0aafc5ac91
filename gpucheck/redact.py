"""What must not leave this machine in a report: secrets in texts and URLs, and the names that may be read at all.

A leaf. :func:`redact` goes over everything that is read before it is kept: command lines, logs, URLs, variables. It
masks by place (``--token X``, ``Authorization: X``), by shape (``hf_…``, ``AKIA…``, a PEM block), and by value:
whatever this process's own environment holds under a secret's name. It would rather mask too much than too little,
takes time linear in the text, and a second pass changes nothing.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MASK: Final = "[redacted]"
_HIDDEN: Final[set[str]] = set()
# Colours and cursors, whole; then what else a terminal would obey, but for line ends and tabs.
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|.)?|\r")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SHORTEST_SECRET: Final = 8

_ALLOWED_NAMES: Final = frozenset(
    """CONDA_DEFAULT_ENV CONDA_PREFIX DOCKER_CONTEXT DOCKER_HOST HF_HOME HF_HUB_OFFLINE KUBERNETES_SERVICE_HOST LANG
    LC_ALL LD_LIBRARY_PATH LD_PRELOAD LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT NODE_RANK NO_PROXY
    NUMEXPR_NUM_THREADS OPENBLAS_NUM_THREADS PATH RANK SLURMD_NODENAME SLURM_CPUS_ON_NODE SLURM_GPUS
    SLURM_GPUS_ON_NODE SLURM_JOB_GPUS SLURM_JOB_ID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_PROCID SLURM_STEP_GPUS
    TMPDIR TRANSFORMERS_OFFLINE VECLIB_MAXIMUM_THREADS VIRTUAL_ENV WORLD_SIZE XDG_RUNTIME_DIR container no_proxy
    """.split()
)
_ALLOWED_PREFIXES: Final = (
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "GLOO_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "NVIDIA_",
    "OMP_",
    "ORT_",
    "PYTHON",
    "PYTORCH_",
    "TORCH",
    "TRITON_",
    "UCX_",
)

# At the end of a name, or before what tells one of several apart: API_TOKEN_PROD, TOKEN_1. MAX_TOKENS is a number.
_SECRET_NAME: Final = re.compile(
    r"(?:token|secret|passw(?:or)?d|passphrase|api_?key|secret_?key|jwt|credentials?)(?:\d*$|_)"
    r"|(?:pass|pwd|_pat|_key|cookie|_auth)\d*$",
    re.IGNORECASE,
)
# PWD and OLDPWD are folders; a *name* of a key file is wanted in a report.
_HARMLESS_NAME: Final = re.compile(r"^(?:old)?pwd$", re.IGNORECASE)

_WORD: Final = (
    r"(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key(?:[_-]?id)?|credentials?"
    r"|(?:secret|private|account|auth|shared|encryption|signing|master|service|storage|subscription|license|deploy|ssh"
    r"|session)[_-]?key)"
)
_WORD_NEEDLES: Final = "token secret passw passphrase key credential"
# Between a name and its value: name=value, "name": "value", ('name', 'value'); or, after --name, a space.
_PAIR: Final = r"""\\?["']?[ \t]*(?:[:=]{1,2}>?[ \t]*|,[ \t]*(?=\\?["']))"""
_OPTION: Final = r"""["']?(?:[ \t\0]+|,[ \t]*(?=["']))"""
# A quoted value and what is glued to it, or a run up to a space or to a quote that closes something. The pieces begin
# with different characters, so that no text makes the search go back.
_VALUE: Final = (
    r"""((?:"(?:[^"\\\n]|\\.)+"|'(?:[^'\\\n]|\\.)+'|\\"[^"\\\n]+\\")[^\s\0"',;:&)}\]\\]*"""
    r"""|["']?[^\s\0"']+(?:["'](?![\s,;:)}\]]|$)[^\s\0"']*)*)"""
)

# Each rule: what must be in the text (lower case) for it to be tried at all, and its pattern: what stays, what goes.
_RULES: Final[tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]] = tuple(
    (tuple(needles.split()), re.compile(pattern, re.ASCII))
    for needles, pattern in (
        # Whole blocks, also cut short ones and those whose newlines were escaped.
        ("-----begin", r"(?s)()(-----BEGIN [A-Z0-9 ]{2,60}-----.*?(?:-----END [A-Z0-9 ]{2,60}-----|\Z))"),
        # user:password@ of a URL. A password may hold any character that its writer forgot to escape.
        ("://", r"""(?i)([a-z][a-z0-9+.-]{0,30}://)([^\s/?#"'<>]{1,2048})(?=@)"""),
        ("://", r"""(?i)([a-z][a-z0-9+.-]{0,30}://)([^\s:/@"'<>]{0,256}:[^\s@"'<>]{0,512})(?=@)"""),
        ("=", r"""(?i)([?&](?:sig|signature|key|code|auth|jwt|sas|x-(?:amz|goog)-[a-z-]{1,40})=)([^&\s"'<>]+)"""),
        # Headers: up to the closing quote or the end of the line all is secret, whatever the scheme.
        (
            "authorization",
            r"""(?i)(authorization\\?["']?[ \t]*[:=,][ \t]*\\?["']?)((?:[^\r\n"'\\]|(?<==)["'][^"'\r\n]*["'])+)""",
        ),
        ("cookie", r"""(?i)(cookie\\?["']?[ \t]*:[ \t]*)([^\r\n]+)"""),
        ("bearer", r"""(?i)\b(bearer[ \t]+)([^\s"',;]{8,})"""),
        # .netrc
        ("password", r"(?i)\b(login\s{1,20}\S{1,200}\s{1,20}password\s{1,20})(\S+)"),
        ("curl", rf"(?i)\b(curl\b[^\n]{{0,400}}?[ \t](?:-u|--user|--proxy-user)(?:[ \t]+|=)){_VALUE}"),
        (_WORD_NEEDLES, rf"(?i)({_WORD}{_PAIR}){_VALUE}"),
        (
            "token secret passw key jwt",
            rf"((?:TOKEN|SECRET|PASSWORD|API_?KEY|SECRET_?KEY|JWT)(?:_[A-Z0-9]{{1,20}}|[0-9]{{1,4}})?{_PAIR}){_VALUE}",
        ),
        ("_", rf"(_(?:KEY|PASS|PWD|PAT|AUTH){_PAIR}){_VALUE}"),
        ("auth", rf"(?i)(\"_?auth(?:token)?\"[ \t]*:[ \t]*){_VALUE}"),
        (_WORD_NEEDLES, rf"(?i)(--?[a-z0-9-]{{0,40}}{_WORD}{_OPTION}){_VALUE}"),
        # Shapes that name their issuer.
        ("akia asia abia acca aroa aida", r"()(\b(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}\b)"),
        ("gh github_ glpat-", r"()(\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}))"),
        ("hf_ api_org_ r8_", r"()(\b(?:hf_|api_org_|r8_)[A-Za-z0-9]{16,})"),
        ("sk-", r"()(\bsk-[\w-]{16,})"),
        (
            "nvapi- pypi- npm_ dckr_pat_ xox wandb_v1_",
            r"()(\b(?:nvapi-|pypi-|npm_|dckr_pat_|xox[abeoprs]-|wandb_v1_)[\w-]{10,})",
        ),
        ("aiza", r"()(\bAIza[\w-]{35})"),
        ("eyj", r"()(\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"),
        ("local-", r"()(\blocal-[0-9a-f]{40}\b)"),
        # A key of wandb has no shape of its own (forty hexadecimal digits are also a commit): its neighbour tells.
        ("wandb", r"(?i)(wandb[^\n]{0,120}?)(\b[0-9a-f]{40}\b)"),
    )
)


def redact(text: str) -> str:
    """``text`` with every secret in it replaced by ``[redacted]``."""
    for secret in _own_secrets(os.environ):
        text = text.replace(secret, MASK)
    lowered = text.lower()
    for needles, pattern in _RULES:
        if any(needle in lowered for needle in needles):
            text = pattern.sub(_mask, text)
    return text


def hide(values: Iterable[str]) -> None:
    """Mask these from now on in this process, as the secrets of its own environment: those of an image, say."""
    _HIDDEN.update(value for value in values if _is_maskable(value))


def redacted(value: Any) -> Any:
    """The same value, its texts without secrets and without what a terminal would obey: the last gate."""
    if isinstance(value, str):
        return redact(_CONTROL.sub("?", _ESCAPE.sub("", value)))
    if isinstance(value, dict):
        return {name: redacted(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in value]
    return value


def _mask(match: re.Match[str]) -> str:
    """What stood before the value, and the mask in the value's own quotes, so that JSON stays JSON."""
    before, value = match.groups()
    quote = next((quote for quote in ('\\"', '"', "'") if value.startswith(quote) and quote in value[1:]), "")
    return f"{before}{quote}{MASK}{quote}"


def redact_url(url: str) -> str:
    """``url`` (also ``user:password@host`` without a scheme) with user, password and secret parameters masked."""
    if "://" not in url and "@" in url:
        return f"{MASK}@{redact(url.rpartition('@')[2])}"
    return redact(url)


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of this name holds a secret."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.match(name)


def is_allowed(name: str) -> bool:
    """Whether the environment variable ``name`` may be read into a fact."""
    return (name in _ALLOWED_NAMES or name.startswith(_ALLOWED_PREFIXES)) and not is_secret_name(name)


def allowed(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``environ`` that may be reported, values redacted."""
    return {name: redact(value) for name, value in sorted(environ.items()) if is_allowed(name)}


def _own_secrets(environ: Mapping[str, str]) -> list[str]:
    """Values that this environment calls secret, longest first (one may hold another)."""
    values = {value for name, value in environ.items() if is_secret_name(name) and _is_maskable(value)}
    return sorted(values | _HIDDEN, key=len, reverse=True)


def _is_maskable(value: str) -> bool:
    # A path is where a secret lies, not the secret; and masking it everywhere would hide what a report is about.
    return len(value) >= _SHORTEST_SECRET and not value.startswith(("/", "~")) and value not in MASK
