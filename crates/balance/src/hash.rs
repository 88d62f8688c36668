//! The hash of maglev keys. It must never change, because two Steelyards only agree on an endpoint if they use the same hash.

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a, 64 bits, finished by MurmurHash3's `fmix64`.
///
/// FNV alone leaves the high bits of short keys (IPv4 addresses) alike; the finish spreads each bit over all. It deliberately has no
/// secret, because it must give the same number in every process. So a client that chooses its key can choose its endpoint, which it could
/// also do by trying keys.
pub fn hash_key(bytes: &[u8]) -> u64 {
    mix(fnv1a(bytes))
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}

/// MurmurHash3's `fmix64`: a bijection in which each bit of the input reaches each bit of the output.
pub(crate) fn mix(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv1a_vectors() {
        // http://www.isthe.com/chongo/src/fnv/test_fnv.c
        for (text, expect) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(fnv1a(text.as_bytes()), expect, "{text:?}");
        }
    }

    #[test]
    fn keys_hash_as_they_always_did() {
        for (key, expect) in KEPT {
            assert_eq!(hash_key(key), *expect, "{key:?}");
        }
    }

    /// Changing one of these moves every client of every maglev cluster during an upgrade.
    const KEPT: &[(&[u8], u64)] =
        &[(b"", 0xefd0_1f60_ba99_2926), (b"10.0.0.1", 0xc879_e56d_dc6c_5c88), (&[10, 0, 0, 1], 0x251c_e681_282f_daa9)];
}
