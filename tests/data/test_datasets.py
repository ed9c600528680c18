import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rlcore.data.datasets import PROMPTS, DatasetError, load_prompts, tokenize_prompts
from rlcore.pretrained import smollm2_directory

DOMAINS = {"arithmetic", "format"}


def row(**keys: object) -> dict[str, Any]:
    return {"domain": "arithmetic", "tag": "sum", "prompt": "What is 1 + 1?", "ground_truth": "2", **keys}


def write(path: Path, *rows: dict[str, Any] | str) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in rows))
    return str(path)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(smollm2_directory())


def test_rows_become_a_frame_in_the_order_of_files_and_lines(tmp_path: Path) -> None:
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    rules = {"rules": [{"kind": "lowercase"}]}
    chat = {"domain": "format", "tag": "lowercase", "messages": conversation, "ground_truth": rules, "id": "greeting"}
    first = write(tmp_path / "b.train.jsonl", row(), "", chat)
    second = write(tmp_path / "a.jsonl", row(prompt="What is 2 + 2?", ground_truth="4"))
    prompts = load_prompts([first, second], DOMAINS)
    assert prompts.schema == PROMPTS
    assert prompts["prompt_id"].to_list() == ["b.train:1", "greeting", "a:1"]
    assert prompts["messages"].to_list() == [
        [{"role": "user", "content": "What is 1 + 1?"}],
        conversation,
        [{"role": "user", "content": "What is 2 + 2?"}],
    ]
    assert json.loads(prompts["ground_truth"][1]) == rules


def test_a_dataset_can_be_a_url(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", row())
    assert load_prompts([f"file://{path}"], DOMAINS)["prompt_id"].to_list() == ["a:1"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"domain": "arithmetic"', "not JSON: EOF while parsing an object at column 23; expected one object per line"),
        ("[1]", "should be an object"),
        (row(groundtruth="2"), "unknown key 'groundtruth' (did you mean 'ground_truth'?); expected domain, tag"),
        ({"domain": "arithmetic", "tag": "sum", "prompt": "?"}, "the key 'ground_truth' is missing; expected domain"),
        (row(ground_truth=2), "ground_truth must be a string or an object, but is 2"),
        (row(ground_truth=["2"]), 'ground_truth must be a string or an object, but is ["2"]'),
        (row(tag=3), "tag: Input should be a valid string, but got 3"),
        (row(prompt=None), "has neither messages nor prompt"),
        (row(messages=[{"role": "user", "content": "?"}]), "has both messages and prompt"),
        (row(prompt=None, messages=[]), "messages: List should have at least 1 item"),
        (row(prompt=None, messages=[{"role": "robot", "content": "?"}]), "should be 'system', 'user' or 'assistant'"),
        (row(prompt=None, messages=[{"role": "assistant", "content": "?"}]), "the last of messages must be the user's"),
        (row(domain="arithmetik"), "'arithmetik' is not configured (did you mean 'arithmetic'?); configured are"),
    ],
)
def test_a_malformed_line_is_refused_with_file_line_and_what_is_wrong(
    tmp_path: Path, line: dict[str, Any] | str, message: str
) -> None:
    path = write(tmp_path / "a.jsonl", row(), "", line, row())
    with pytest.raises(DatasetError) as error:
        load_prompts([path], DOMAINS)
    assert str(error.value).startswith(f"{path}:3: ")
    assert message in str(error.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"domain": "\xff"}\n')
    with pytest.raises(DatasetError, match=r"a\.jsonl:1: not JSON"):
        load_prompts([str(path)], DOMAINS)


def test_the_same_id_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", row(id="x"))
    second = write(tmp_path / "b.jsonl", row(), row(id="x"))
    with pytest.raises(DatasetError) as error:
        load_prompts([first, second], DOMAINS)
    assert f"{second}:2: the id 'x' is already that of {first}:1" in str(error.value)


def test_files_of_the_same_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    paths = [write(tmp_path / "a.jsonl", row()), write(tmp_path / "other" / "a.jsonl", row())]
    with pytest.raises(DatasetError, match="the files different names"):
        load_prompts(paths, DOMAINS)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"a\.jsonl: no rows"):
        load_prompts([write(tmp_path / "a.jsonl", "")], DOMAINS)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        load_prompts([str(tmp_path / "nowhere.jsonl")], DOMAINS)


def test_prompts_are_tokenized_with_the_chat_template(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    prompts = load_prompts([write(tmp_path / "a.jsonl", row())], DOMAINS)
    kept, dropped = tokenize_prompts(prompts, tokenizer, prompt_length=64)
    assert dropped == []
    assert kept["prompt_ids"].dtype == pl.List(pl.Int32)
    text = tokenizer.decode(kept["prompt_ids"][0].to_list())
    assert text.endswith("<|im_start|>user\nWhat is 1 + 1?<|im_end|>\n<|im_start|>assistant\n")


def test_longer_prompts_are_dropped_and_named(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    path = write(tmp_path / "a.jsonl", row(), row(prompt="Why? " * 50), row(domain="format"))
    prompts = load_prompts([path], DOMAINS)
    exact = len(tokenize_prompts(prompts, tokenizer, prompt_length=500)[0]["prompt_ids"][0])
    kept, dropped = tokenize_prompts(prompts, tokenizer, prompt_length=exact)
    assert kept["prompt_id"].to_list() == ["a:1", "a:3"]
    assert dropped == ["a:2"]


def test_a_domain_that_keeps_no_prompt_is_an_error(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    path = write(tmp_path / "a.jsonl", row(), row(domain="format", prompt="Why? " * 50))
    prompts = load_prompts([path], DOMAINS)
    with pytest.raises(DatasetError, match=r"drops every prompt of a domain; the shortest, in tokens: format \d+"):
        tokenize_prompts(prompts, tokenizer, prompt_length=64)
