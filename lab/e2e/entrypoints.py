"""Runs pieces of vLLM's own entry-point tests (from its sdist) against an engine and against a router
in front of it, and lists the tests that end differently. Nothing is started but pytest.

usage: entrypoints.py TESTS DIRECT_URL ROUTED_URL MODEL FOLDER

TESTS is the folder "tests" of vLLM's sdist, MODEL the name that both serve, FOLDER takes copies and results.
Tests that need another model than a tiny random one fail in both places and count as equal.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree as xml

MODEL = ""
TIMEOUT = 60  # seconds for one test

FILES = [
    "conftest.py",
    "openai/chat_completion/test_chat.py",
    "openai/chat_completion/test_chat_completion.py",
    "openai/chat_completion/test_chat_echo.py",
    "openai/chat_completion/test_chat_logit_bias_validation.py",
    "openai/completion/test_completion.py",
    "openai/completion/test_prompt_validation.py",
    "openai/models/test_models.py",
    "openai/responses/conftest.py",
    "openai/responses/test_simple.py",
    "openai/test_return_token_ids.py",
    "openai/test_return_tokens_as_ids.py",
    "openai/test_chunked_prompt.py",
    "anthropic/test_messages.py",
    "cohere/test_chat_v2.py",
    "serve/tokenize/test_tokenization.py",
]

# What the tests take for a server that they start; here it runs already.
UTILS = '''
import os
import pathlib
import openai

VLLM_PATH = pathlib.Path(os.environ["ENTRYPOINTS_VLLM"])

class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, *args, **kwargs):
        self.base = os.environ["ENTRYPOINTS_URL"]

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return None

    @property
    def url_root(self):
        return self.base

    def url_for(self, *parts):
        return self.base + "/" + "/".join(parts)

    def get_client(self, **kwargs):
        kwargs.setdefault("timeout", 60)
        return openai.OpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **kwargs)

    def get_async_client(self, **kwargs):
        kwargs.setdefault("timeout", 60)
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **kwargs)

    def get_client_anthropic(self, **kwargs):
        import anthropic
        return anthropic.Anthropic(base_url=self.base, api_key=self.DUMMY_API_KEY, max_retries=0, **kwargs)

    def get_async_client_anthropic(self, **kwargs):
        import anthropic
        return anthropic.AsyncAnthropic(base_url=self.base, api_key=self.DUMMY_API_KEY, max_retries=0, **kwargs)

ROCM_ENV_OVERRIDES = {}
ROCM_EXTRA_ARGS = []
'''


def copy(tests, to, model, root):
    """Copies the tests with the model's name replaced, a stand-in for their utilities, and the model's folder where its
    tokenizer is looked for by that name."""
    shutil.rmtree(to, ignore_errors=True)
    for name in FILES:
        source = tests / "entrypoints" / name
        if not source.exists():
            continue
        text = source.read_text()
        text = re.sub(r'^((?:SERVED_)?MODEL_NAME) = "[^"]*"', rf'\1 = "{model}"', text, flags=re.M)
        text = text.replace("claude-3-7-sonnet-latest", model).replace("HuggingFaceH4/zephyr-7b-beta", model).replace("openai-community/gpt2", model)
        text = re.sub(r'"[^"]*-lora"', '"adapter"', text)
        text = re.sub(r"hf_api\(\)\.snapshot_download\(.*?\)", '"nowhere"', text, flags=re.S)
        target = to / "tests" / "entrypoints" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        for folder in target.parents:
            (folder / "__init__.py").touch()
            if folder == to / "tests":
                break
    (to / "tests" / "utils.py").write_text(UTILS)
    (to / model).symlink_to(root)
    (to / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = session\nasyncio_default_test_loop_scope = session\n")


def alive(url):
    """Fails when a server is gone: two servers that are not there agree in everything."""
    urllib.request.urlopen(url + "/v1/models", timeout=30).read()
    body = json.dumps({"model": MODEL, "prompt": "hello", "max_tokens": 2}).encode()
    urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"}), timeout=60).read()


def run(folder, name, url, tests):
    """Runs the copies against one URL and returns how each test ended."""
    report = folder.parent / f"{name}.xml"
    log = (folder.parent / f"{name}.log").open("w")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={TIMEOUT}", f"--junitxml={report}", "tests"],
        cwd=folder, env={**os.environ, "ENTRYPOINTS_URL": url, "ENTRYPOINTS_VLLM": str(tests.parent), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder)},
        stdout=log, stderr=log, check=False,
    )
    ends = {}
    for case in xml.parse(report).iter("testcase"):
        kinds = {child.tag: (child.get("message") or "")[:200] for child in case if child.tag in ("failure", "error", "skipped")}
        end = next(iter(kinds), "passed")
        ends[f"{case.get('classname')}::{case.get('name')}"] = (end, kinds.get(end, ""))
    alive(url)
    return ends


def main():
    global MODEL
    tests, direct, routed, MODEL, folder = sys.argv[1:]
    tests, folder = pathlib.Path(tests).resolve(), pathlib.Path(folder).resolve()
    for url in (direct, routed):
        alive(url)
    cards = json.load(urllib.request.urlopen(direct + "/v1/models", timeout=30))["data"]
    copy(tests, folder / "copies", MODEL, next(c["root"] for c in cards if c["id"] == MODEL))
    a = run(folder / "copies", "direct", direct, tests)
    b = run(folder / "copies", "routed", routed, tests)
    different = [t for t in sorted(set(a) | set(b)) if a.get(t, ("absent", ""))[0] != b.get(t, ("absent", ""))[0]]
    count = lambda ends, kind: sum(1 for e in ends.values() if e[0] == kind)
    for name, ends in (("direct", a), ("routed", b)):
        print(f"{name}: {count(ends, 'passed')} passed, {count(ends, 'failure') + count(ends, 'error')} failed, {count(ends, 'skipped')} skipped")
    for t in different:
        print(f"DIFFERENT {t}\n  direct {a.get(t)}\n  routed {b.get(t)}")
    print(f"{len(different)} tests end differently")
    sys.exit(1 if different else 0)


main()
