"""Classes of kernel names from libraries."""

import pytest

from traincope.analysis.kernels.kernel_classes import Family, kernel_class, operator_class

KERNELS = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "nccl",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "nccl",
    "rcclGenericKernel": "rccl",
    "void nvshmemi_transfer_put_kernel": "nvshmem",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)": "nvshmem",
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int)": "userbuffers",
    "void c10d::symmetric_memory::multimem_all_reduce_kernel<c10::BFloat16, 16>": "symmetric_memory",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "symmetric_memory",
    "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, void*, int*, long*, int*)": "nvshmem",
    "void internode::combine<false, 4, __nv_bfloat16, 2, 4096>(int4*, float*, bool const*, int const*)": "nvshmem",
    "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*, int*, int*, int*, bool*, int)": "unknown",
    "void uccl::intranode::combine<__nv_bfloat16, 8, 768>": "uccl",
    "void pplx::dispatchKernel<10u, true>(pplx::DispatchParams)": "expert_exchange",
    "mori::moe::EpCombineInterNodeKernel<hip_bfloat16>": "expert_exchange",
    "void tensorrt_llm::kernels::mnnvl_throughput::moeA2ADispatchKernel<8>": "expert_exchange",
    "void mscclpp::executionKernel<float, mscclpp::LL16PacketType>(int, float*)": "msccl",
    "mscclKernel_Sum_half_LL(ncclDevComm*, mscclAlgo*)": "msccl",
    "ncclSymkDevKernel_ReduceScatter_LDMC_sum_bf16": "nccl",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>": "symmetric_memory",
    "void (anonymous namespace)::put_signal_kernel(unsigned int**, unsigned long)": "symmetric_memory",
    "void c10d::intra_node_comm::oneShotAllReduceKernel<8, true>": "symmetric_memory",
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<(Pattern)1, bf16, 8>": "collective",
    "void flashinfer::trtllm_alltoall::moeAllToAllKernel<8>(FusedMoeFieldInfo)": "collective",
    "void fbgemm_gpu::all_to_all_vec<float>": "collective",
    "oneccl_allreduce_small": "oneccl",
    "hcom_allReduce_": "hccl",
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<cutlass::bfloat16_t>": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128": "attention",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<>)": "attention",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1": "gemm",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT": "gemm",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>": "gemm",
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1": "gemm",
    "ampere_sgemm_128x64_nn": "gemm",
    "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc": "gemm",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>": "norm",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128, true, 1, true>": "norm",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>": "optimizer",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": "elementwise",
    "triton_poi_fused_add_mul_silu_0": "elementwise",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": "elementwise",
    "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda>": "memory",
    "Memcpy HtoD (Pinned -> Device)": "memory",
    "Memset (Device)": "memory",
    "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel": "embedding",
    "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>": "indexing",
    "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>>": "indexing",
    "triton_poi_fused_all_gather_into_tensor_copy_add_3": "memory",
    "triton_red_fused_add_all_reduce_wait_tensor_1": "elementwise",
    "void block_all_reduce_sum_f32_kernel<256>(float*, float*, int)": "elementwise",
    "void cta_all_reduce_kernel<128>(float*)": "elementwise",
    "void rocshmem::rocshmem_putmem_kernel": "rocshmem",
    "ishmem_barrier_all_kernel": "ishmem",
    "void fast_hadamard_transform_kernel<8>": "elementwise",
    "void apex::fused_adam_kernel": "optimizer",
    "void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>(float**)": "memory",
    "mcclDevKernel_Broadcast_RING_LL(mcclDevComm*, mcclWork*)": "collective",
    "cnclKernel_SendRecv": "collective",
    "kernel_dispatch_token_intra_node": "expert_exchange",
    "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>": "norm",
    "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits>": "attention",
    "_chunk_scan_fwd_kernel": "state_space",
    "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16, 1, true>>(SSMParamsBase)": "state_space",
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": "state_space",
    "fused_moe_kernel": "gemm",
    "void moe_align_block_size_kernel<int>(int*, int*, int*, int, int, int, unsigned long)": "indexing",
    "liger_cross_entropy_kernel": "elementwise",
    "_swiglu_forward_kernel": "elementwise",
    "loop_add_fusion_3": "elementwise",
    "void kOptimizerStatic8bit2StateBlockwise<__nv_bfloat16, 0, 256, 1>": "optimizer",
    "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_dilation2": "gemm",
    # "_NSA_" is a reference in a mangled name, and "sort" a type among its arguments
    "_ZN2ck6device12_GLOBAL__N_136kernel_grouped_conv_fwd_multiple_abdINS_12GridwiseSortItfENSA_IJLi64EEEEEvT_": "gemm",
    "_ZN4mine11some_kernelIN2at4halfELi4EEEvPT_": "unknown",
    "_ZN9quickfast13all_reduce_1sIfEEvPT_": "collective",
    "naive_conv_ab_nonpacked_fwd_nchw_float_double_float": "gemm",
    "my_very_own_thing": "unknown",
}

OPERATORS = {
    "aten::addmm": "gemm",
    "aten::t": "memory",
    "aten::tanh": "elementwise",
    "aten::to": "memory",
    "aten::topk": "indexing",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "aten::native_layer_norm_backward": "norm",
    "aten::_fused_adamw_": "optimizer",
    "autograd::engine::evaluate_function: AddmmBackward0": "framework",
    "c10d::allreduce_": "c10d",
    "mylib::anything": "unknown",
    "aten::linalg_svd": "unknown",
}


@pytest.mark.parametrize(("name", "kind"), KERNELS.items())
def test_a_kernels_class_follows_its_librarys_name(name: str, kind: str) -> None:
    assert kernel_class(name).name == kind


@pytest.mark.parametrize(("name", "kind"), OPERATORS.items())
def test_an_operators_class_follows_torchs_name(name: str, kind: str) -> None:
    assert operator_class(name).name == kind


@pytest.mark.parametrize("name", ["flux::gemm_rs_kernel", "triton_allgather_gemm_persistent", "gemm_all_reduce_tma"])
def test_a_product_that_communicates_is_fused_compute(name: str) -> None:
    result = kernel_class(name)
    assert (result.name, result.family, result.fused) == ("gemm", Family.COMPUTE, True)


def test_only_communication_kernels_have_the_communication_family() -> None:
    kinds = {kind for name, kind in KERNELS.items() if kernel_class(name).family is Family.COMMUNICATION}
    assert kinds == {
        "nccl",
        "rccl",
        "nvshmem",
        "userbuffers",
        "symmetric_memory",
        "oneccl",
        "hccl",
        "msccl",
        "uccl",
    } | {
        "expert_exchange",
        "collective",
        "rocshmem",
        "ishmem",
    }
