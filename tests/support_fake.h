/*
 * Where the stand-in for the CUDA driver lies: beside the test's program, in a
 * folder of its own, so that nobody finds it by accident.
 */
#ifndef CKV_TESTS_SUPPORT_FAKE_H
#define CKV_TESTS_SUPPORT_FAKE_H

/* support_fake_path() - a static buffer; fails the test if the program does not know where it is */
const char *support_fake_path(void);

#endif
