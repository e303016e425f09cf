// Replaces CuTe's wgmma on the host. The traits of an instruction define what the executor computes.
#pragma once

#include <cute/atom/mma_traits.hpp>
#include <common/atoms_sm90.cuh>

#define mma_unpack genuine_mma_unpack
#include_next <cute/atom/mma_traits_sm90_gmma.hpp>
#undef mma_unpack

namespace cute {

template <class Number>
constexpr auto host_element() {
  using hgemm::executor::Element;
  if constexpr (is_same_v<Number, half_t>) return Element::f16;
  if constexpr (is_same_v<Number, bfloat16_t>) return Element::bf16;
  if constexpr (is_same_v<Number, tfloat32_t>) return Element::tf32;
  if constexpr (is_same_v<Number, float>) return Element::f32;
}
template <class Fragment>
constexpr bool host_is_k_major = is_same_v<Fragment, SM90::GMMA::smem_desc<SM90::GMMA::Major::K>>;

namespace SM90::GMMA {

// d (64, n) = a (64, k) * b (k, n), or d += a * b if the traits ask for it. a and b are descriptors in shared memory.
template <class Op, class... Args, class TD, class DLayout, class TA, class ALayout, class TB, class BLayout, class TC, class CLayout>
void mma_unpack(MMA_Traits<Op, Args...> const& traits, Tensor<TD, DLayout>& d, Tensor<TA, ALayout> const& a,
                Tensor<TB, BLayout> const& b, Tensor<TC, CLayout> const&) {
  using Traits = MMA_Traits<Op, Args...>;
  constexpr int n = size<1>(typename Traits::Shape_MNK{});
  constexpr int registers = extent<typename Op::CRegisters>::value;
  static_assert(is_same_v<decltype(a(0)), GmmaDescriptor>, "a must be in shared memory");

  Tensor accumulators = recast<typename remove_extent<typename Op::CRegisters>::type>(d);
  static_assert(decltype(size(accumulators))::value == registers && decltype(cosize(accumulators.layout()))::value == registers);
  hgemm::executor::WgmmaArguments const arguments = {
      a(0), b(0), n, host_is_k_major<typename Traits::FrgTypeA>, host_is_k_major<typename Traits::FrgTypeB>,
      traits.accumulate_ == ScaleOut::One};
  auto product = hgemm::atoms::operation(hgemm::executor::Kind::wgmma, hgemm::executor::here());
  product.in = host_element<typename Traits::ValTypeA>();
  product.acc = host_element<typename Traits::ValTypeC>();
  product.to = &accumulators(0);
  product.second = &arguments;
  hgemm::executor::perform(product);
}

}  // namespace SM90::GMMA
}  // namespace cute
