"""Makes a Llama with random weights and a tokenizer of its own; run by an engine's Python: make_model.py FOLDER SIZE

The tokenizer (byte-level BPE) learns from the standard library's sources, so nothing comes from a model hub. `small`
has 40 million parameters; `tiny`, with 1.3 million, is too quick for vLLM: with a few streams its API loop starves and
every chunk of a stream arrives at the end.
"""

import sys
import sysconfig
from pathlib import Path

import torch
from sglang_cpu import torchvision_operators  # noqa: F401 - transformers imports torchvision where it is installed
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
POSITIONS = 32768
SIZES = {
    "small": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 12, "head_dim": 64}
    | {"num_attention_heads": 8, "num_key_value_heads": 4},
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 32}
    | {"num_attention_heads": 4, "num_key_value_heads": 2},
}
# ChatML (the format of Qwen and others): an assistant message that is to be continued stays open.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% if not (loop.last and continue_final_message) %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sources = sorted(str(path) for path in Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    trainer = trainers.BpeTrainer(
        vocab_size=8192,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(sources, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=None,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast, size: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **SIZES[size],
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


folder, size = sys.argv[1:]
tokenizer = make_tokenizer()
tokenizer.save_pretrained(folder)
make_model(tokenizer, size).save_pretrained(folder)
