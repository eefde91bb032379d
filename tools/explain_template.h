/* The page of `chunkkvctl explain` with @@slots@@ to be filled in: tools/explain.html, as a string. */
#ifndef CKV_TOOLS_EXPLAIN_TEMPLATE_H
#define CKV_TOOLS_EXPLAIN_TEMPLATE_H

extern const char ckv_explain_template[];       /* ends with a NUL */

#endif
