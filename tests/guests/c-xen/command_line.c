#include "command_line.h"

#include <stddef.h>

#include "console.h"

static const char *words = "";

void command_line_start(const struct xen_start_info *info)
{
    if (info->magic != START_INFO_MAGIC) {
        panic("the boot's information is not that of a PVH guest");
    }
    if (info->command_line != 0) {
        words = (const char *)info->command_line;
    }
}

/* The text after `key=`, or NULL. */
static const char *value_of(const char *key)
{
    for (const char *word = words; *word != 0; word++) {
        size_t length = 0;
        while (key[length] != 0 && word[length] == key[length]) {
            length++;
        }
        if (key[length] == 0 && word[length] == '=' && (word == words || word[-1] == ' ')) {
            return word + length + 1;
        }
    }
    return NULL;
}

bool command_line_has(const char *key)
{
    return value_of(key) != NULL;
}

bool command_line_is(const char *key, const char *value)
{
    const char *text = value_of(key);
    while (text != NULL && *value != 0 && *text == *value) {
        text++;
        value++;
    }
    return text != NULL && *value == 0 && (*text == 0 || *text == ' ');
}

/* Parses a decimal number up to `most`, and moves `*text` after it. */
static bool take_number(const char **text, uint32_t most, uint32_t *number)
{
    const char *begin = *text;
    *number = 0;
    while (**text >= '0' && **text <= '9' && *number <= most) {
        *number = *number * 10 + (uint32_t)(*(*text)++ - '0');
    }
    return *text != begin && *number <= most;
}

bool command_line_address(const char *key, uint8_t address[4], uint32_t *prefix)
{
    const char *text = value_of(key);
    if (text == NULL) {
        return false;
    }
    for (unsigned part = 0; part < 4; part++) {
        uint32_t number;
        if ((part > 0 && *text++ != '.') || !take_number(&text, 255, &number)) {
            return false;
        }
        address[part] = (uint8_t)number;
    }
    *prefix = 32;
    return *text != '/' || (text++, take_number(&text, 32, prefix));
}
