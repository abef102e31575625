"""Runs pieces of vLLM's own entry-point tests (from its sdist) against an engine and against a router
in front of it, and lists the tests that end differently. Nothing is started but pytest.

usage: entrypoints.py TESTS DIRECT_URL ROUTED_URL MODEL FOLDER

TESTS is the folder "tests" of vLLM's sdist, MODEL the name that both serve, FOLDER takes copies and results.
Tests that need another model than a tiny random one fail in both places and count as equal.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree as xml

FILES = [
    "entrypoints/openai/chat_completion/test_chat.py",
    "entrypoints/openai/chat_completion/test_chat_completion.py",
    "entrypoints/openai/chat_completion/test_chat_echo.py",
    "entrypoints/openai/chat_completion/test_chat_logit_bias_validation.py",
    "entrypoints/openai/completion/test_completion.py",
    "entrypoints/openai/models/test_models.py",
    "entrypoints/openai/test_return_token_ids.py",
    "entrypoints/openai/test_return_tokens_as_ids.py",
    "entrypoints/openai/test_chunked_prompt.py",
    "entrypoints/anthropic/test_messages.py",
]

# What the tests take for a server that they start; here it runs already.
UTILS = '''
import os
import openai

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

class RemoteLaunchRenderServer(RemoteOpenAIServer):
    pass

ROCM_ENV_OVERRIDES = {}
ROCM_EXTRA_ARGS = []
'''


def copy(tests, to, model):
    """Copies the tests with the model's name replaced, and a stand-in for their utilities."""
    shutil.rmtree(to, ignore_errors=True)
    for name in FILES:
        source = tests / name
        if not source.exists():
            continue
        text = source.read_text()
        text = re.sub(r'^(MODEL_NAME) = "[^"]*"', rf'\1 = "{model}"', text, flags=re.M)
        text = re.sub(r"^from (\.+)utils import", "from entry_utils import", text, flags=re.M)
        text = re.sub(r"^from tests\.utils import", "from entry_utils import", text, flags=re.M)
        target = to / name.replace("/", "_")
        target.parent.mkdir(parents=True, exist_ok=True)
        target = target.with_name("test_" + target.name)
        target.write_text(text)
    (to / "entry_utils.py").write_text(UTILS)
    (to / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = session\nasyncio_default_test_loop_scope = session\n")


def run(folder, name, url):
    """Runs the copies against one URL and returns how each test ended."""
    report = folder.parent / f"{name}.xml"
    log = (folder.parent / f"{name}.log").open("w")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=60", f"--junitxml={report}", str(folder)],
        cwd=folder, env={**__import__("os").environ, "ENTRYPOINTS_URL": url, "HF_HUB_OFFLINE": "1"}, stdout=log, stderr=log, check=False,
    )
    ends = {}
    for case in xml.parse(report).iter("testcase"):
        kinds = {child.tag: (child.get("message") or "")[:200] for child in case if child.tag in ("failure", "error", "skipped")}
        end = next(iter(kinds), "passed")
        ends[f"{case.get('classname')}::{case.get('name')}"] = (end, kinds.get(end, ""))
    return ends


def main():
    tests, direct, routed, model, folder = sys.argv[1:]
    folder = pathlib.Path(folder)
    for url in (direct, routed):
        urllib.request.urlopen(url + "/v1/models", timeout=10).read()  # two servers that are not there agree in everything
    copy(pathlib.Path(tests), folder / "copies", model)
    a = run(folder / "copies", "direct", direct)
    b = run(folder / "copies", "routed", routed)
    different = [t for t in sorted(set(a) | set(b)) if a.get(t, ("absent", ""))[0] != b.get(t, ("absent", ""))[0]]
    count = lambda ends, kind: sum(1 for e in ends.values() if e[0] == kind)
    for name, ends in (("direct", a), ("routed", b)):
        print(f"{name}: {count(ends, 'passed')} passed, {count(ends, 'failure') + count(ends, 'error')} failed, {count(ends, 'skipped')} skipped")
    for t in different:
        print(f"DIFFERENT {t}\n  direct {a.get(t)}\n  routed {b.get(t)}")
    print(f"{len(different)} tests end differently")
    sys.exit(1 if different else 0)


main()
