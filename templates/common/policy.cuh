// The values of the fields of a Policy. A Policy is a struct of constants that describes one kernel; the generator writes it.
#pragma once

namespace hgemm {

// The type in which products accumulate. f16_promoted adds its halves to floats after each k-tile.
enum class Accumulate { f32, f16, f16_promoted };

// How A and B reach shared memory. ldg_sts_unaligned cuts each 16-byte vector out of two aligned ones.
enum class Copy { cp_async, ldg_sts, ldg_sts_scalar, ldg_sts_unaligned, tma };

// Where a k-tile issues the cp.async of a later one: spread over its first or last k-block, or all before the last k-block.
enum class CopyPlacement { in_first_block, in_last_block, before_last_block };

// How D leaves the registers of a warpgroup.
enum class Store { direct, tma };

// Where a value is `launch`, each launch decides it by a field of its Problem.

// The order of tiles. A group is raster_tiles rows of tiles, a panel raster_tiles columns of tiles.
enum class Raster { row, column, group, panel, launch };

// How CTAs share tiles and k.
enum class Schedule { one_tile, persistent, split_k, split_k_cluster, stream_k, launch };

// The shape of the bias: (n,) for a row, (m,) for a column.
enum class Bias { none, row, column, launch };

}  // namespace hgemm
