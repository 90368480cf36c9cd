"""Counting of kernels, bytes and turns, in a program that is small enough to count by hand."""

import jax
import jax.numpy as jnp

from experiments.system.gpu_kernels import Work, work_of

PROGRAM = """HloModule jit_f, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%cut (p: f32[100,8], at: s32[]) -> f32[1,8] {
  %p = f32[100,8]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %row = f32[1,8]{1,0} dynamic-slice(%p, %at, %zero), dynamic_slice_sizes={1,8}
}

%put (whole: f32[100,8], row: f32[1,8], at: s32[]) -> f32[100,8] {
  %whole = f32[100,8]{1,0} parameter(0)
  %row.1 = f32[1,8]{1,0} parameter(1)
  %at.1 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %in = f32[100,8]{1,0} dynamic-update-slice(%whole, %row.1, %at.1, %zero.1)
}

%body (state: (s32[], f32[100,8])) -> (s32[], f32[100,8]) {
  %state = (s32[], /*index=1*/f32[100,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[100,8]{1,0} get-tuple-element(%state), index=1
  %row.2 = f32[1,8]{1,0} fusion(%x, %i), kind=kLoop, calls=%cut
  %both = f32[100,8]{1,0} fusion(%x, %row.2, %i), kind=kLoop, calls=%put
  ROOT %out = (s32[], f32[100,8]{1,0}) tuple(%i, %both)
}

%less (state.1: (s32[], f32[100,8])) -> pred[] {
  %state.1 = (s32[], f32[100,8]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (a: f32[100,8], b: bf16[8,4], n: s32[]) -> (s32[], f32[100,8]) {
  %a = f32[100,8]{1,0} parameter(0)
  %b = bf16[8,4]{1,0} parameter(1)
  %n = s32[] parameter(2)
  %made = (f32[100,4]{1,0}, u8[0]{0}) custom-call(%a, %b), custom_call_target="__cudnn$f"
  %first = (s32[], f32[100,8]{1,0}) tuple(%n, %a)
  ROOT %loop = (s32[], f32[100,8]{1,0}) while(%first), condition=%less, body=%body, KNOWN
}
""".replace("KNOWN", 'backend_config={"known_trip_count":{"n":"5"}}')


def test_a_program_is_counted():
    """Of a slice its own bytes count, of what is written in place those of the change."""
    call = 100 * 8 * 4 + 8 * 4 * 2 + 100 * 4 * 4
    cut = 32 + 4 + 32
    put = 32 + 4 + 32
    assert work_of(PROGRAM) == Work(1 + 5 * 2, call + 5 * (cut + put), 5)
    unknown = PROGRAM.replace("known_trip_count", "of_data")
    assert work_of(unknown) == Work(1 + 2, call + cut + put, 0)


def test_what_xla_writes_is_read():
    """Of a CPU's compiler too, whose text has the same form: two products, one in a loop."""

    def function(x):
        return jax.lax.scan(lambda x, _: (x @ x, None), x @ x, length=7)[0]

    text = jax.jit(function).lower(jnp.ones((64, 64))).compile().as_text()
    work = work_of(text)
    assert work.turns == 7 and work.kernels >= 8
    assert work.bytes >= 8 * 3 * 64 * 64 * 4
