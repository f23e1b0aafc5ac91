"""What may leave this machine: no secret, wherever it stands; everything else, unchanged."""

from __future__ import annotations

import json
import string
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpucheck.redact import MASK, allowed, hide, is_allowed, is_secret_name, redact, redact_url, redacted

SECRET = "pl4nted-S3cret"
TOKEN_CHARACTERS = string.ascii_letters + string.digits + "-_.~+/=!%&,;:"
PLACES = [
    "HF_TOKEN={}",
    "export WANDB_API_KEY='{}' && true",
    "docker run -e AWS_SECRET_ACCESS_KEY={} img",
    "train.py --token {} --epochs 3",
    "train.py --hub-token={}",
    "['train.py', '--password', '{}', '--lr', '1']",
    "('GITHUB_TOKEN', '{}')",
    "train.py\0--api-key\0{}\0--lr\0001",
    '{{"HF_TOKEN": "{}", "PATH": "/usr/bin"}}',
    '"Env": ["MY_SECRET={}", "PATH=/usr/bin"]',
    r'"{{\"password\": \"{}\"}}"',
    "Authorization: Bearer {}",
    "curl -H 'Authorization: token {}' https://api.example",
    "curl -s -u user:{} https://api.example",
    "Proxy-Authorization: Basic {}",
    "Set-Cookie: session={}; Path=/",
    "password: {}",
    "access_key => {}",
    "GET /file?token={} HTTP/1.1",
    "https://bucket.example/x?X-Amz-Signature={}",
    "machine api.wandb.ai\n  login user\n  password {}",
    "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----\\n{}",
]
SHAPES = [
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuv",
    "glpat-abcdefghij0123456789",
    "sk-proj-abcdefghijklmnopqrstuvwxyz012345",
    "sk-ant-api03-abcdefghijklmnopqrst",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "nvapi-abcdefghijklmnopqrstuvwxyz",
    "xoxb-123456789012-abcdefghijkl",
    "AIzaSyA-abcdefghijklmnopqrstuvwxyz01234",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk",
    "pypi-AgEIcHlwaS5vcmcCJGFiY2RlZg",
]
HARMLESS = [
    "RuntimeError: DataLoader worker (pid(s) 46794) exited unexpectedly",
    "max_tokens=512 tokenizer=gpt2 num_tokens: 4096 TOKENIZERS_PARALLELISM=false",
    "KeyError: 'image'",
    "docker run --user 1000:1000 --shm-size=1g img",
    "PWD=/home/user OLDPWD=/srv",
    "torch 2.13.0 (git 0123456789abcdef0123456789abcdef01234567)",
    "git+https://github.com/owner/repository.git@v1.2",
    "http://proxy.example:3128",
    "/dev/shm/nccl-AbCdEf (size 9637888)",
    '{"token": ""}',
]


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_in_its_place_is_masked(place: str) -> None:
    """A value that stands where secrets stand is not in the text any more, and the mask is."""
    text = redact(place.format(SECRET))
    assert SECRET not in text
    assert MASK in text


@given(secret=st.text(TOKEN_CHARACTERS, min_size=1, max_size=80), place=st.sampled_from(PLACES))
@example(secret="a,b;c&d", place=PLACES[0])
@example(secret="[redacted", place=PLACES[3])
def test_any_secret_in_its_place_is_masked(secret: str, place: str) -> None:
    """Whatever a token is made of, it goes, and a second pass changes nothing."""
    # A mark around the secret tells it from the same letters elsewhere in the text.
    marked = f"Zq{secret}qZ"
    text = redact(place.format(marked))
    assert marked not in text
    assert redact(text) == text


@given(
    user=st.text(string.ascii_letters, min_size=0, max_size=8),
    password=st.text(string.ascii_letters + string.digits + "!$&*+,;=~./#?-_", min_size=1, max_size=40),
)
def test_userinfo_of_a_url_is_masked(user: str, password: str) -> None:
    """User and password go from a URL, however badly they were escaped; the host and the port stay."""
    marked = f"Zq{password}qZ"
    text = redact(f"http_proxy=http://{user}:{marked}@proxy.example:3128 next")
    assert marked not in text
    assert text.endswith("@proxy.example:3128 next")


@pytest.mark.parametrize("secret", SHAPES)
def test_a_known_shape_is_masked_wherever_it_stands(secret: str) -> None:
    """A token of a known issuer needs no name beside it."""
    assert redact(f"using {secret}, then") == f"using {MASK}, then"


def test_a_key_of_wandb_is_told_from_a_commit() -> None:
    """Forty hexadecimal digits are a key beside the word wandb, and a commit elsewhere."""
    digits = "0123456789abcdef" * 2 + "01234567"
    assert redact(f"wandb: logged in with {digits}") == f"wandb: logged in with {MASK}"
    assert redact(f"wandb is here\nHEAD is at {digits}") == f"wandb is here\nHEAD is at {digits}"


def test_a_secret_of_our_own_environment_is_masked_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process's environment holds under a secret's name is masked in every text, without name or shape."""
    monkeypatch.setenv("SITE_TOKEN", "correct horse battery")
    assert redact("the words are: correct horse battery, he said") == f"the words are: {MASK}, he said"


def test_a_secret_that_is_part_of_the_mask_does_not_grow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password that somebody called "redacted" does not make a second pass change what the first one masked."""
    monkeypatch.setenv("SITE_PASSWORD", "redacted")
    assert redact(redact(f"using {SHAPES[0]}")) == f"using {MASK}"


def test_a_path_under_a_secrets_name_is_not_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that says where a secret lies does not make its path unreadable everywhere."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/etc/gcp/key.json")
    assert redact("no such file: /etc/gcp/key.json") == "no such file: /etc/gcp/key.json"


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_without_secrets_is_unchanged(text: str) -> None:
    """Diagnoses live on exact texts: what is no secret stays as it is."""
    assert redact(text) == text


@given(st.text(max_size=300))
def test_redaction_is_idempotent(text: str) -> None:
    """What was redacted once is not changed by a second pass."""
    once = redact(text)
    assert redact(once) == once


def test_json_stays_json() -> None:
    """A masked value keeps its quotes, so that a document can still be read."""
    document = {"HF_TOKEN": "abc", "Authorization": "Bearer abcdefgh", "Env": ["MY_SECRET=abc", "A=1"], "n": 1}
    masked = json.loads(redact(json.dumps(document)))
    assert masked == {"HF_TOKEN": MASK, "Authorization": MASK, "Env": [f"MY_SECRET={MASK}", "A=1"], "n": 1}


@pytest.mark.parametrize("unit", ["://a:b", "--a", 'token="', '="x', "-----BEGIN AB-----", "wandb ", "curl -u", "'a"])
def test_time_grows_with_the_text_and_no_faster(unit: str) -> None:
    """A text that is four times as long takes about four times as long, not sixteen: no pattern goes back and forth."""
    redact(unit)
    short, long = (_seconds(unit * (size // len(unit))) for size in (50_000, 200_000))
    assert long < 10 * max(short, 0.005)


def _seconds(text: str) -> float:
    """The processor's time: others use this machine too."""
    spent = []
    for _ in range(3):
        begun = time.process_time()
        redact(text)
        spent.append(time.process_time() - begun)
    return min(spent)


@pytest.mark.parametrize("url", ["tcp://user:pw@host:2375", "user:pw@host", "ssh://user@host"])
def test_a_url_keeps_its_host_alone(url: str) -> None:
    """An engine's address is shown without who logs in there."""
    assert redact_url(url).rpartition("@")[2].startswith("host")
    assert "user" not in redact_url(url)


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "LD_PRELOAD", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
)
def test_names_that_explain_failures_may_be_read(name: str) -> None:
    """The variables that diagnoses ask for are on the list."""
    assert is_allowed(name)


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_REGION", "NVIDIA_API_KEY", "CUDA_SECRET", "USER", "TORCH_HUB_TOKEN"])
def test_other_names_may_not_be_read(name: str) -> None:
    """A name that nobody listed, or that names a secret in spite of its prefix, is never read."""
    assert not is_allowed(name)


def test_only_allowed_variables_are_reported_and_redacted() -> None:
    """Of an environment only the listed names come out, and a secret inside a listed one does not."""
    environ = {"NCCL_DEBUG": "INFO", "DOCKER_HOST": "tcp://u:p@h:1", "HF_TOKEN": "x" * 20}
    assert allowed(environ) == {"NCCL_DEBUG": "INFO", "DOCKER_HOST": f"tcp://{MASK}@h:1"}


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *(
            (name, True)
            for name in ("PGPASSWORD", "DB_PASS", "API_TOKEN_PROD", "PASSWORD_PROD", "TOKEN_1", "SECRETKEY")
        ),
        *((name, True) for name in ("JWT", "OPENAI_KEY2", "MY_API_KEY")),
        *((name, False) for name in ("PWD", "OLDPWD", "MONKEY", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "KEYBOARD")),
    ],
)
def test_a_name_says_whether_it_holds_a_secret(name: str, *, secret: bool) -> None:
    """Its end decides, or a word before what tells several apart; the working folder is none."""
    assert is_secret_name(name) is secret


def test_what_was_hidden_is_masked_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret of an image's environment is masked wherever it comes up; what is short, or a path, is not."""
    monkeypatch.setattr("gpucheck.redact._HIDDEN", set())
    hide(["swordfish-of-an-image", "/run/secrets/x", "short"])
    assert redact("it said swordfish-of-an-image") == f"it said {MASK}"
    assert redact("/run/secrets/x short") == "/run/secrets/x short"


def test_a_pair_whose_name_has_a_tail_is_masked() -> None:
    """As variables are printed that tell several apart."""
    assert redact("API_TOKEN_PROD=swordfish JWT=abcdef") == f"API_TOKEN_PROD={MASK} JWT={MASK}"
    assert redact("MAX_TOKENS=4096 token_count=128") == "MAX_TOKENS=4096 token_count=128"


def test_nothing_that_a_terminal_would_obey_is_written() -> None:
    """Colours, cursors, titles and bells of a payload's text reach neither the record nor a screen."""
    text = "a\x1b[2Jb\x1b]0;title\x07c\x1b[31mred\x1b[0m\x08d\r\n\te\x9b1m"
    assert redacted({"x": [text]}) == {"x": ["abcred?d\n\te?1m"]}
    assert redacted("\x1b]0;begun\nand what follows") == "0;begun\nand what follows"
