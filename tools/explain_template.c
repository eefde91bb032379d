/*
 * The page is a file of HTML, CSS and JavaScript that can be read and edited as
 * such; the assembler puts its bytes into the program.  The path is relative to
 * the root of the repository, where the compiler runs.
 */
#include "tools/explain_template.h"

__asm__(".section .rodata\n"
        ".balign 16\n"
        ".globl ckv_explain_template\n"
        ".hidden ckv_explain_template\n"
        ".type ckv_explain_template, @object\n"
        "ckv_explain_template:\n"
        ".incbin \"tools/explain.html\"\n"
        ".byte 0\n"
        ".size ckv_explain_template, . - ckv_explain_template\n"
        ".text\n");
