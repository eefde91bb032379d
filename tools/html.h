/* Text of others in a page of HTML. */
#ifndef CKV_TOOLS_HTML_H
#define CKV_TOOLS_HTML_H

#include <stdio.h>

/**
 * ckv_html_text() - write text so that it is text, between tags and in quoted attributes
 *
 * Newlines become the sign for them and a newline.  What cannot be seen, or would change how its neighbours look
 * (control characters, marks of direction), is shown by a sign or its number; bytes that are not UTF-8 become U+FFFD.
 */
void ckv_html_text(FILE *to, const char *text);

#endif
