"""Makes the models that the runs against real vLLM use: a random Llama of two layers, a
byte-level BPE tokenizer trained on the spot, and a chat template with system, user, assistant
and tool turns and a thinking switch. Nothing is downloaded.

usage: model.py FOLDER
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

# The model's size: it answers at once.
HIDDEN, INTERMEDIATE, CONTEXT = 128, 256, 4096

SPECIALS = ["<|endoftext|>", "<|begin_of_text|>", "<|im_start|>", "<|im_end|>"]

# Enough variety for merges of words, code, numbers and several scripts.
CORPUS = [
    "The router sends each request to the replica that already holds the longest prefix of it.",
    "A block of tokens is stored once and found again by the hash of everything before it.",
    "When the queue of a replica grows, another one may answer sooner although it knows less.",
    "You are a helpful assistant. Answer briefly, and say so when you do not know.",
    "Each conversation grows turn by turn, and each turn repeats all the turns before it.",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "unit": "celsius"}}',
    "Der schnelle braune Fuchs springt über den faulen Hund. Größe, Straße, Äpfel.",
    "Le café est près de la forêt, où l'été est très doux.",
    "Привет, как дела? 你好，世界。 こんにちは 世界 🚀🌍 naïve façade",
    "0123456789 3.14159 2026-08-17 1,000,000 0x1f",
    "for i := range 10 { fmt.Println(i, \"value\") } // a comment\n\tindented line\n",
]

TEMPLATE = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first %}
{%- elif message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content if message.content is string else '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""


def make_tokenizer(folder: pathlib.Path) -> int:
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(CORPUS * 4, trainer)
    bos = tok.token_to_id("<|begin_of_text|>")
    tok.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)]
    )
    tok.save(str(folder / "tokenizer.json"))
    write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    )
    return tok.get_vocab_size()


def make_model(folder: pathlib.Path, vocab: int) -> dict:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HIDDEN // 4,
        "vocab_size": vocab,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 3,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }
    write(folder / "config.json", config)
    write(
        folder / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 0, "do_sample": False},
    )
    make_weights(folder, config)
    return config


def make_weights(folder: pathlib.Path, config: dict) -> None:
    """Random weights with a fixed seed, so that every replica answers alike."""
    import torch
    from safetensors.torch import save_file

    gen = torch.Generator().manual_seed(20)
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]

    def rand(*shape: int, scale: float = 0.08) -> "torch.Tensor":
        return torch.randn(*shape, generator=gen) * scale

    weights = {
        "model.embed_tokens.weight": rand(config["vocab_size"], hidden, scale=1.0),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": rand(config["vocab_size"], hidden, scale=0.3),
    }
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        weights |= {
            at + "self_attn.q_proj.weight": rand(hidden, hidden),
            at + "self_attn.k_proj.weight": rand(kv, hidden),
            at + "self_attn.v_proj.weight": rand(kv, hidden),
            at + "self_attn.o_proj.weight": rand(hidden, hidden),
            at + "mlp.gate_proj.weight": rand(inter, hidden),
            at + "mlp.up_proj.weight": rand(inter, hidden),
            at + "mlp.down_proj.weight": rand(hidden, inter),
            at + "input_layernorm.weight": torch.ones(hidden),
            at + "post_attention_layernorm.weight": torch.ones(hidden),
        }
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def make_lora(folder: pathlib.Path, config: dict, rank: int = 8) -> None:
    """A random adapter on the attention's query and value projections."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    gen = torch.Generator().manual_seed(21)
    hidden = config["hidden_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    weights = {}
    for i in range(config["num_hidden_layers"]):
        for name, out in (("q_proj", hidden), ("v_proj", kv)):
            at = f"base_model.model.model.layers.{i}.self_attn.{name}."
            weights[at + "lora_A.weight"] = torch.randn(rank, hidden, generator=gen) * 0.2
            weights[at + "lora_B.weight"] = torch.randn(out, rank, generator=gen) * 0.2
    save_file(weights, str(folder / "adapter_model.safetensors"))
    write(
        folder / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "tiny",
            "r": rank,
            "lora_alpha": 2 * rank,
            "lora_dropout": 0.0,
            "target_modules": ["q_proj", "v_proj"],
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
        },
    )


def write(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False))


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    vocab = make_tokenizer(folder)
    config = make_model(folder, vocab)
    make_lora(folder / "lora", config)
    print(f"made a model with {vocab} ids in {folder}")


if __name__ == "__main__":
    main()
