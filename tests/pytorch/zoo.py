"""Models that nobody here wrote, in small forms: of torchvision, and of transformers by configs.

Nothing drops anything, as a plan's draws are not one process's. `build(name)` gives a model, its
loss and `batch(step)`: a tuple or a dict, as `parallelize` takes it.
"""

import functools
import importlib

import torch
from torch import nn

from autoddl import batchwise
from tests.pytorch.models import batches

ROWS, WORDS, LENGTH, SIDE = 8, 96, 16, 32
_SMALL = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64, "pad_token_id": None,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 8}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_BERT = {**_SMALL, "pad_token_id": 0}
_T5 = {
    "vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
_IMAGE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": SIDE, "patch_size": 8, "num_labels": 10,
}  # fmt: skip
_BART = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip

# the class of transformers, its configuration's, and what is small in it
CAUSAL = {
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4,
             "n_positions": 64, "bos_token_id": None, "eos_token_id": None}),
    "llama": ("LlamaForCausalLM", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", _HEADS),
    "gemma2": ("Gemma2ForCausalLM", {**_HEADS, "sliding_window": 8}),
    "mixtral": ("MixtralForCausalLM", {**_GROUPED, **_EXPERTS, "head_dim": 8}),
    "mamba2": ("Mamba2ForCausalLM", {**_SMALL, "num_heads": 8, "head_dim": 8, "n_groups": 1,
               "state_size": 16, "chunk_size": 8}),
    "mistral": ("MistralForCausalLM", {**_HEADS, "sliding_window": 8}),
    "qwen2": ("Qwen2ForCausalLM", _GROUPED),
    "gemma": ("GemmaForCausalLM", _HEADS),
    "gemma3": ("Gemma3ForCausalLM", {**_HEADS, "sliding_window": 8}),
    "falcon": ("FalconForCausalLM", {**_SMALL, "ffn_hidden_size": 64}),
    "gptneox": ("GPTNeoXForCausalLM", _SMALL),
    "gptneo": ("GPTNeoForCausalLM", {**_SMALL, "num_layers": 2, "num_heads": 4, "window_size": 8,
               "attention_types": [[["global", "local"], 1]]}),
    "gptj": ("GPTJForCausalLM", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4,
             "n_positions": 64, "rotary_dim": 4, "bos_token_id": None, "eos_token_id": None}),
    "phi": ("PhiForCausalLM", _SMALL),
    "phi3": ("Phi3ForCausalLM", _GROUPED),
    "opt": ("OPTForCausalLM", {**_SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32,
            "pad_token_id": 1}),
    "bloom": ("BloomForCausalLM", {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2,
              "n_head": 4}),
    "mpt": ("MptForCausalLM", {"vocab_size": WORDS, "d_model": 32, "n_layers": 2, "n_heads": 4,
            "max_seq_len": 64}),
    "stablelm": ("StableLmForCausalLM", _GROUPED),
    "starcoder2": ("Starcoder2ForCausalLM", _GROUPED),
    "olmo": ("OlmoForCausalLM", _GROUPED),
    "olmo2": ("Olmo2ForCausalLM", _GROUPED),
    "granite": ("GraniteForCausalLM", _GROUPED),
    "cohere": ("CohereForCausalLM", _GROUPED),
    "mamba": ("MambaForCausalLM", {**_SMALL, "state_size": 8}),
    "rwkv": ("RwkvForCausalLM", {**_SMALL, "attention_hidden_size": 32, "context_length": 64}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**_HEADS, "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 32}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}),
    "olmoe": ("OlmoeForCausalLM", {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {**_SMALL, "num_key_value_heads": 4,
                    "moe_intermediate_size": 32, "q_lora_rank": 16, "kv_lora_rank": 16,
                    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
                    "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
                    "num_experts_per_tok": 2, "first_k_dense_replace": 1}),
    "gpt_oss": ("GptOssForCausalLM", {**_HEADS, **_EXPERTS, "sliding_window": 8}),
    "granitemoe": ("GraniteMoeForCausalLM", {**_GROUPED, **_EXPERTS}),
    "falcon_h1": ("FalconH1ForCausalLM", {**_HEADS, "mamba_d_ssm": 64, "mamba_n_heads": 8,
                  "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 16,
                  "mamba_chunk_size": 8}),
    "jamba": ("JambaForCausalLM", {**_GROUPED, "attn_layer_period": 2, "attn_layer_offset": 1,
              "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 4,
              "mamba_d_state": 8, "use_mamba_kernels": False}),
    "llama4": ("Llama4ForCausalLM", {**_HEADS, "num_local_experts": 4, "intermediate_size_mlp": 64,
               "attention_chunk_size": 8}),
    "xglm": ("XGLMForCausalLM", {"vocab_size": WORDS, "d_model": 32, "num_layers": 2, "ffn_dim": 64,
             "attention_heads": 4, "max_position_embeddings": 64}),
    "codegen": ("CodeGenForCausalLM", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4,
                "n_positions": 64, "rotary_dim": 4, "bos_token_id": None, "eos_token_id": None}),
}  # fmt: skip
MASKED = {
    "bert": ("BertForMaskedLM", _BERT),
    "distilbert": ("DistilBertForMaskedLM", {"vocab_size": WORDS, "dim": 32, "n_layers": 2,
                   "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64}),
    "roberta": ("RobertaForMaskedLM", {**_BERT, "pad_token_id": 1}),
    "albert": ("AlbertForMaskedLM", {**_BERT, "embedding_size": 16}),
    "electra": ("ElectraForMaskedLM", {**_BERT, "embedding_size": 16}),
    "convbert": ("ConvBertForMaskedLM", {**_BERT, "embedding_size": 32, "conv_kernel_size": 3,
                 "head_ratio": 2}),
    "mobilebert": ("MobileBertForMaskedLM", {**_BERT, "embedding_size": 16,
                   "intra_bottleneck_size": 32, "true_hidden_size": 32}),
    "deberta_v2": ("DebertaV2ForMaskedLM", {**_BERT, "relative_attention": True,
                   "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}),
    "mpnet": ("MPNetForMaskedLM", {**_BERT, "pad_token_id": 1}),
    "fnet": ("FNetForMaskedLM", _BERT),
    "squeezebert": ("SqueezeBertForMaskedLM", {**_BERT, "embedding_size": 32}),
    "modernbert": ("ModernBertForMaskedLM", {**_BERT, "local_attention": 8,
                   "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2}),
    "esm": ("EsmForMaskedLM", {**_BERT, "pad_token_id": 1, "mask_token_id": 2,
            "position_embedding_type": "rotary"}),
    "roformer": ("RoFormerForMaskedLM", {**_BERT, "embedding_size": 32}),
    "xlnet": ("XLNetLMHeadModel", {"vocab_size": WORDS, "d_model": 32, "n_layer": 2, "n_head": 4,
              "d_inner": 64}),
}  # fmt: skip
SEQUENCES = {
    "t5": ("T5ForConditionalGeneration", _T5),
    "mt5": ("MT5ForConditionalGeneration", _T5),
    "bart": ("BartForConditionalGeneration", _BART),
    "pegasus": ("PegasusForConditionalGeneration", _BART),
    "marian": ("MarianMTModel", _BART),
    "switch": (
        "SwitchTransformersForConditionalGeneration",
        {
            **_T5,
            "num_experts": 4,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "num_decoder_layers": 2,
            "expert_capacity": 64,
            "router_jitter_noise": 0.0,
        },
    ),
}
IMAGES = {
    "vit": ("ViTForImageClassification", _IMAGE),
    "deit": ("DeiTForImageClassification", _IMAGE),
    "beit": ("BeitForImageClassification", {**_IMAGE, "use_relative_position_bias": True}),
    "dinov2": ("Dinov2ForImageClassification", _IMAGE),
    "segformer": ("SegformerForImageClassification", {"num_encoder_blocks": 2, "depths": [1, 1],
                  "sr_ratios": [4, 2], "hidden_sizes": [16, 32], "patch_sizes": [7, 3],
                  "strides": [4, 2], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2],
                  "num_labels": 10}),
    "poolformer": ("PoolFormerForImageClassification", {"depths": [1, 1], "hidden_sizes": [16, 32],
                   "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1],
                   "num_encoder_blocks": 2, "num_labels": 10}),
    "mobilevit": ("MobileViTForImageClassification", {"image_size": SIDE, "num_labels": 10,
                  "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32]}),
    "resnet_hf": ("ResNetForImageClassification", {"embedding_size": 8, "hidden_sizes": [8, 16],
                  "depths": [1, 1], "layer_type": "basic", "num_labels": 10}),
    "swin_hf": ("SwinForImageClassification", {"image_size": SIDE, "patch_size": 4, "embed_dim": 16,
                "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "num_labels": 10}),
    "swinv2": ("Swinv2ForImageClassification", {"image_size": SIDE, "patch_size": 4,
               "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4,
               "num_labels": 10}),
    "convnextv2": ("ConvNextV2ForImageClassification", {"hidden_sizes": [8, 16], "depths": [1, 1],
                   "num_stages": 2, "num_labels": 10}),
    "levit": ("LevitForImageClassification", {"image_size": SIDE, "hidden_sizes": [16, 32, 32],
              "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8],
              "patch_size": 16, "num_labels": 10}),
    "pvt": ("PvtForImageClassification", {"image_size": SIDE, "num_encoder_blocks": 2,
            "depths": [1, 1], "sequence_reduction_ratios": [4, 2], "hidden_sizes": [16, 32],
            "patch_sizes": [4, 2], "strides": [4, 2], "num_attention_heads": [2, 4],
            "mlp_ratios": [2, 2], "num_labels": 10}),
    "cvt": ("CvtForImageClassification", {"embed_dim": [16, 32], "num_heads": [2, 2],
            "depth": [1, 2], "patch_sizes": [7, 3], "patch_stride": [4, 2], "patch_padding": [2, 1],
            "mlp_ratio": [2.0, 2.0], "attention_drop_rate": [0.0, 0.0], "drop_rate": [0.0, 0.0],
            "drop_path_rate": [0.0, 0.0], "qkv_bias": [True, True], "cls_token": [False, True],
            "qkv_projection_method": ["dw_bn", "dw_bn"], "kernel_qkv": [3, 3],
            "padding_kv": [1, 1], "stride_kv": [2, 2], "padding_q": [1, 1], "stride_q": [1, 1],
            "num_labels": 10}),
}  # fmt: skip
# tokens go to experts by values, each row with its own capacity; a backward pass of its own; FFT
_AS_THEY_ARE = "SwitchTransformersSparseMLP", "BloomGelu", "FNetBasicFourierTransform"
OPAQUE = "switch", "bloom", "fnet"
VISION = (
    "resnet18", "vgg11", "vit_b_16", "swin_t", "convnext_tiny", "efficientnet_b0", "densenet121",
    "mobilenet_v3_small", "regnet_x_400mf", "shufflenet_v2_x0_5", "squeezenet1_1", "mobilenet_v2",
    "mnasnet0_5", "resnext", "wide_resnet", "googlenet", "inception_v3", "alexnet", "swin_v2_t",
    "maxvit_t", "efficientnet_v2_s",
)  # fmt: skip
OTHERS = ("clip", "whisper", "wav2vec2", "detr", "llava", "patchtst")
ASKED = (
    *VISION[:8], "gpt2", "bert", "llama", "qwen3", "gemma2", "t5", "mixtral", "mamba2",
)  # fmt: skip
TRAINED = (
    *ASKED, "deit", "vit", "falcon", "phi3", "qwen2", "opt", "gptneox", "olmo2", "distilbert",
    "bart", "whisper", "clip", "falcon_h1", "jamba", "llama4", "swinv2", "detr", "llava",
    "patchtst",
)  # fmt: skip
NAMES = (*VISION, *CAUSAL, *MASKED, *SEQUENCES, *IMAGES, *OTHERS)


def build(name: str):
    """The model with equal values in each process, its loss, and its batches."""
    torch.manual_seed(0)
    if name in VISION:
        model, loss, batch = (
            _vision(name),
            nn.CrossEntropyLoss(),
            batches(_shape(name), 0, (ROWS,), 10),
        )
    else:
        model, batch = _hugging_face(name)
        loss = _own_loss
    for module in model.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ in (
            "StochasticDepth",
            "DropPath",
        ):
            for option in ("p", "drop_prob"):
                if hasattr(module, option):
                    setattr(module, option, 0.0)
    return model, loss, batch


def _shape(name):
    # EfficientNet reduces 32 to 1, and BatchNorm of 8 values is chaos in float64, too
    side = {"alexnet": 64, "inception_v3": 80, "efficientnet_b0": 64}.get(name, SIDE)
    return ROWS, 3, side, side


def _own_loss(result, batch):
    if "pred_boxes" in result:  # without the matching of boxes, which looks at values
        return result["logits"].square().mean() + (result["pred_boxes"] - 0.3).square().mean()
    if "loss" not in result:  # of pairs of texts and images
        scores = result["logits_per_text"]
        return nn.functional.cross_entropy(scores, torch.arange(scores.shape[0]))
    return result["loss"]


def _vision(name):
    from torchvision import models  # type: ignore[import-not-found]

    if name == "vgg11":
        model = models.vgg11(num_classes=10)
        model.classifier = nn.Sequential(nn.Linear(512 * 49, 32), nn.ReLU(True), nn.Linear(32, 10))
        return model
    if name == "alexnet":
        model = models.alexnet(num_classes=10)
        model.classifier = nn.Sequential(nn.Linear(256 * 36, 32), nn.ReLU(True), nn.Linear(32, 10))
        return model
    if name == "vit_b_16":
        return models.VisionTransformer(SIDE, 8, 2, 4, 32, 64, num_classes=10)
    if name in ("swin_t", "swin_v2_t"):
        second = name == "swin_v2_t"
        block = importlib.import_module("torchvision.models.swin_transformer")
        more = {"block": block.SwinTransformerBlockV2, "downsample_layer": block.PatchMergingV2}
        return models.SwinTransformer(
            [4, 4], 16, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=10,
            **(more if second else {}),
        )  # fmt: skip
    if name == "convnext_tiny":
        one = models.convnext.CNBlockConfig
        return models.ConvNeXt([one(16, 32, 1), one(32, None, 2)], num_classes=10)
    if name == "densenet121":
        return models.DenseNet(8, (2, 2, 2, 2), 16, num_classes=10)
    if name == "maxvit_t":
        return models.MaxVit((SIDE, SIDE), 16, 4, [16, 32], [1, 1], 8, 0.0, num_classes=10)
    if name == "resnext":
        return models.ResNet(
            models.resnet.Bottleneck, [1, 1, 1, 1], 10, groups=4, width_per_group=8
        )
    if name == "wide_resnet":
        return models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], 10, width_per_group=96)
    more = (
        {"aux_logits": False, "init_weights": True}
        if "net" in name and name in ("googlenet", "inception_v3")
        else {}
    )
    if name == "inception_v3":
        more = {"aux_logits": False, "init_weights": False}
    return getattr(models, name)(num_classes=10, **more)


def _hugging_face(name):
    import transformers

    words = functools.partial(_words, ("input_ids", "labels"))
    if name == "switch":
        return _made(transformers, *SEQUENCES[name]), _masked_words
    if name in CAUSAL or name in MASKED or name in SEQUENCES:
        kind, small = {**CAUSAL, **MASKED, **SEQUENCES}[name]
        return _made(transformers, kind, small), words
    if name in IMAGES:
        kind, small = IMAGES[name]
        return _made(transformers, kind, small), _image
    if name == "clip":
        text = {**_SMALL, "projection_dim": 16, "eos_token_id": 2}
        image = {**_IMAGE, "projection_dim": 16}
        config = transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=16)
        return transformers.CLIPModel(config), _pairs
    if name == "whisper":
        small = {
            **_BART,
            "num_mel_bins": 16,
            "max_source_positions": 16,
            "max_target_positions": 32,
        }
        return _made(transformers, "WhisperForConditionalGeneration", small), _sound
    if name == "wav2vec2":
        small = {**_SMALL, "conv_dim": [16, 16], "conv_kernel": [8, 4], "conv_stride": [4, 4],
                 "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "mask_time_prob": 0.0,
                 "num_conv_pos_embedding_groups": 2, "num_labels": 10, "apply_spec_augment": False,
                 "classifier_proj_size": 16, "pad_token_id": 0}  # fmt: skip
        return _made(transformers, "Wav2Vec2ForSequenceClassification", small), _waves
    if name == "patchtst":
        small = {"num_input_channels": 3, "context_length": 32, "patch_length": 8,
                 "patch_stride": 8, "prediction_length": 8, "d_model": 32, "ffn_dim": 64,
                 "num_hidden_layers": 2, "num_attention_heads": 4}  # fmt: skip
        return _made(transformers, "PatchTSTForPrediction", small), _series
    if name == "detr":  # which asks whether numbers are finite in training
        eyes = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
            out_features=["stage2"],
        )  # fmt: skip
        small = {**_BART, "backbone_config": eyes, "encoder_layers": 1, "decoder_layers": 1,
                 "num_queries": 6, "num_labels": 5, "use_timm_backbone": False,
                 "backbone": None}  # fmt: skip
        return _made(transformers, "DetrForObjectDetection", small), _pixels
    if name == "llava":  # which takes hidden states by hooks that its first call registers
        eyes = transformers.CLIPVisionConfig(**_IMAGE, projection_dim=16, attention_dropout=0.0)
        words = transformers.LlamaConfig(**_GROUPED)
        config = transformers.LlavaConfig(
            vision_config=eyes, text_config=words, image_token_index=2, image_seq_length=16
        )
        return transformers.LlavaForConditionalGeneration(config), _read_images
    raise ValueError(f"no model {name!r} here; there are {', '.join(NAMES)}")


def _made(transformers, kind, small):
    own = getattr(transformers, kind)
    config = own.config_class(**small)
    config.use_cache = False
    for option, value in config.to_dict().items():
        if "drop" in option and isinstance(value, float):
            setattr(config, option, 0.0)
    model = own(config)
    for module in model.modules():
        if type(module).__name__ in _AS_THEY_ARE:
            batchwise(module)
    return model


def _drawn(step):
    return torch.Generator().manual_seed(1000 + step)


def _words(keys, step):
    drawn = _drawn(step)
    return {key: torch.randint(3, WORDS, (ROWS, LENGTH), generator=drawn) for key in keys}


def _masked_words(step):
    words = _words(("input_ids", "labels"), step)
    return {**words, "attention_mask": torch.ones(ROWS, LENGTH, dtype=torch.int64)}


def _image(step):
    drawn = _drawn(step)
    pixels = torch.randn(ROWS, 3, SIDE, SIDE, generator=drawn)
    return {"pixel_values": pixels, "labels": torch.randint(0, 10, (ROWS,), generator=drawn)}


def _pixels(step):
    return {"pixel_values": _image(step)["pixel_values"]}


def _read_images(step):
    """Words of which sixteen stand for parts of the image."""
    drawn = _drawn(step)
    words = torch.randint(3, WORDS, (ROWS, 24), generator=drawn)
    words[:, 2:18] = 2
    labels = torch.randint(3, WORDS, (ROWS, 24), generator=drawn)
    return {**_pixels(step), "input_ids": words, "labels": labels}


def _series(step):
    values = torch.randn(ROWS, 40, 3, generator=_drawn(step))
    return {"past_values": values[:, :32], "future_values": values[:, 32:]}


def _pairs(step):
    return {**_words(("input_ids",), step), "pixel_values": _image(step)["pixel_values"]}


def _sound(step):
    return {
        "input_features": torch.randn(ROWS, 16, 32, generator=_drawn(step)),
        **_words(("labels",), step),
    }


def _waves(step):
    drawn = _drawn(step)
    waves = torch.randn(ROWS, 400, generator=drawn)
    return {"input_values": waves, "labels": torch.randint(0, 10, (ROWS,), generator=drawn)}
